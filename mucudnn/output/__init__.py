"""Output for people and programs: streams, files, tables and texts."""

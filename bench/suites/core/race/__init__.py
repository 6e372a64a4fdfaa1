"""The race between algorithms, played on recorded times."""

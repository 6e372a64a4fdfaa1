"""One sample over several ranks."""

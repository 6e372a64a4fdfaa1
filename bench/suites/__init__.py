"""The programs of the bench, by suite."""

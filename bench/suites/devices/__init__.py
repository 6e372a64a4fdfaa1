"""Work on several devices."""

"""One huge sample in tiles."""

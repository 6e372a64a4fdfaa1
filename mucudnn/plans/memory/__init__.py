"""Plans of a training step within a memory budget."""

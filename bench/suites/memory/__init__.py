"""Training within a memory budget."""

"""What is decided: how each kernel is divided, and the text that keeps it."""

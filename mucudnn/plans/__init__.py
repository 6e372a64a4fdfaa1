"""The decisions: a configuration for each kernel, and the plan files that keep them."""

"""The memory of a training step: saved tensors stay, are offloaded, or are recomputed."""

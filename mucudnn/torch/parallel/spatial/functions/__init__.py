"""PyTorch's functions for divided tensors."""

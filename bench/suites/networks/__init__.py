"""PyTorch networks and calls, converted, against stock PyTorch."""

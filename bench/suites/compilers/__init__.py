"""Converted models beside the ways in which people make PyTorch's models faster on a CPU."""

"""The passes of a convolution as PyTorch operators."""

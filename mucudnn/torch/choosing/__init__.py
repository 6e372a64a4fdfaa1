"""The choice between PyTorch's own convolution and mucudnn's passes, for calls and for whole steps."""

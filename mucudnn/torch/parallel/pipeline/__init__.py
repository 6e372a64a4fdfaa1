"""A model in stages on several devices. Its public face is `mucudnn.torch.pipeline`."""

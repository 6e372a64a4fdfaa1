"""One sample over several devices. Its public face is `mucudnn.torch.spatial`."""

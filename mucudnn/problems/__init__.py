"""The work: kernels, their descriptors, and the networks that they make."""

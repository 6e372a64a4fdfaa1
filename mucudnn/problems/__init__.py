"""What is to be computed: kernels, their descriptors and networks of them."""

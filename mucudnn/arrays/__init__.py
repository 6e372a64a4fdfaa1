"""Convolutions of arrays of any library: NumPy, PyTorch, CuPy, DLPack."""

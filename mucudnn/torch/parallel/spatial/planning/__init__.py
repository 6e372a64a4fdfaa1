"""The choice of a mesh and of the places where a divided tensor is gathered."""

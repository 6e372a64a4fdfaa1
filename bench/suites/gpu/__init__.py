"""The gain by division on a GPU, and the programs that measure it."""

"""The gain by division on a GPU: `python -m bench.gpu`, and the programs that it runs."""

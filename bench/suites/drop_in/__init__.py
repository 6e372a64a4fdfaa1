"""The drop-in library: its cost, and the calls that it recognises."""

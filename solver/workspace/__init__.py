"""Micro-batch sizes and algorithms within a workspace limit, for each kernel or for a whole network."""

"""Exchanges between the ranks that share a sample, and the agreement about them."""

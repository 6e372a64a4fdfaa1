"""Groups of channels, which a plan may have beside its division of the mini-batch."""

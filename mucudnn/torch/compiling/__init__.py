"""Convolutions inside `torch.compile`: the engine gets those that it computes faster than Inductor."""

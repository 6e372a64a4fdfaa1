"""The operations and saved tensors of a model's training step, as one run of it shows."""

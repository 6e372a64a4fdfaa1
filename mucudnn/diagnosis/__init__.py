"""The reasons why the ranks of a training run idle, found in traces of torch.profiler."""

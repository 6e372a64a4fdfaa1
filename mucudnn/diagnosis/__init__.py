"""The causes for which the ranks of a training idle, found in traces of torch.profiler."""

"""Memory of PyTorch on the stand-in as a new process finds it, and limited as on a smaller device."""

from collections.abc import Iterator
from contextlib import contextmanager

from needs_torch import torch


@contextmanager
def unused_stream() -> Iterator[None]:
    """Use a new stream, whose tensors get no memory that the allocator keeps for another stream."""
    torch.cuda.empty_cache()
    with torch.cuda.stream(torch.cuda.Stream()):
        yield
    torch.cuda.empty_cache()


@contextmanager
def limited_to(limit: int) -> Iterator[None]:
    """Let PyTorch take no more than these bytes beyond those that it has."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + limit + 0.5) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

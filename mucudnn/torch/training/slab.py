"""The slab: a fixed place in pinned host memory for each offloaded tensor of a plan."""

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor

from mucudnn.errors import NothingFitsError
from mucudnn.plans.memory.parts import PlannedTensor
from mucudnn.sizes import format_size


class Slab:
    """The places of a plan's offloaded tensors in pinned host memory.

    A place belongs to one tensor of one training step at a time. A graph that the program keeps also keeps
    its places.
    """

    def __init__(self, memory: Tensor, tensors: Iterable[PlannedTensor]) -> None:
        self._places = {
            t.order: memory[t.slab_offset : t.slab_offset + t.bytes]
            for t in tensors
            if t.slab_offset is not None
        }
        self._taken: set[int] = set()

    def take(self, order: int) -> Tensor | None:
        """Return the bytes at a tensor's place, or None if it has none or an earlier step still holds it."""
        if order in self._taken or order not in self._places:
            return None
        self._taken.add(order)
        return self._places[order]

    def give(self, order: int) -> None:
        """Free a place for the next step. Any thread may call this."""
        self._taken.discard(order)


def pin(size: int) -> Tensor:
    """Return pinned bytes, not rounded up to a power of two as by PyTorch's allocator.

    Raises NothingFitsError if there is too little memory that can be pinned.
    """
    try:
        memory = torch.empty(size, dtype=torch.uint8)
    except RuntimeError:
        raise _no_memory(size, "") from None
    if not size:
        return memory
    runtime = torch.cuda.cudart()
    status = runtime.cudaHostRegister(memory.data_ptr(), size, 0)
    if int(status) != 0:
        raise _no_memory(size, f" (cudaHostRegister: {status})")
    release = weakref.finalize(memory.untyped_storage(), runtime.cudaHostUnregister, memory.data_ptr())
    release.atexit = False  # the CUDA runtime may be gone by then, and the system frees the memory
    return memory


def _no_memory(size: int, reason: str) -> NothingFitsError:
    return NothingFitsError(
        f"the memory plan needs {format_size(size)} of pinned host memory, and there is less{reason}: plan "
        "with a smaller host_memory="
    )

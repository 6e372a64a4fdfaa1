"""Helpers for the examples that run on several processes: their mesh, and the count of saved bytes."""

from __future__ import annotations

import atexit
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn


def start() -> Any:
    """Return a mesh of CPUs whose dimension `part` has all ranks, connected by gloo."""
    from mucudnn.torch import spatial

    if not dist.is_initialized():
        if "RANK" not in os.environ:
            raise SystemExit("run this example with: torchrun --nproc-per-node 2 FILE")
        dist.init_process_group("gloo")
        # Gloo's threads may abort a program that exits right after a collective without this.
        atexit.register(dist.destroy_process_group)
        torch.set_num_threads(1)
    return spatial.init_mesh("cpu", timeout=60, part=dist.get_world_size())


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """A context that counts the bytes that autograd saves, each storage once, without parameters."""

    def __init__(self, model: nn.Module) -> None:
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._storages: dict[int, Any] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                self._storages[storage.data_ptr()] = storage  # kept alive, so that no address is used twice
            return tensor

        super().__init__(pack, lambda tensor: tensor)

    def __enter__(self) -> SavedBytes:
        super().__enter__()
        return self

    @property
    def total(self) -> int:
        """The bytes so far."""
        return sum(storage.nbytes() for storage in self._storages.values())


def mean_of_gradients(model: nn.Module) -> None:
    """Take the mean of all gradients over the ranks, as DistributedDataParallel does."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest element of b."""
    return float(((a - b).abs().max() / b.abs().max()).detach())


def report(name: str, error: float, whole: int, part: int, limit: float) -> None:
    """Print the error, and the bytes of the undivided model and of each rank."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part)
    if dist.get_rank() == 0:
        each = ", ".join(f"{size / 2**20:.2f}" for size in parts)
        print(f"{name}: {error:.1e}")
        print(f"MiB: undivided {whole / 2**20:.2f}; each rank {each}")
    if not error <= limit:
        raise SystemExit(f"the results differ by {error:.1e}, more than rounding")

"""Functions that run on every rank of a traced program, for `test_traces`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, record_function

STEPS = 3


def _send_and_receive(values: Tensor) -> None:
    if dist.get_rank() == 0:
        dist.send(values, 1)
    else:
        dist.recv(values, 0)


def _gather(values: Tensor) -> None:
    dist.gather(values, [values.clone() for _ in range(2)] if dist.get_rank() == 0 else None)


OPERATIONS = {
    "send and receive": _send_and_receive,
    "all_to_all": lambda values: dist.all_to_all_single(torch.empty_like(values), values),
    "all_reduce": dist.all_reduce,
    "reduce_scatter": lambda values: dist.reduce_scatter(values[:8].clone(), list(values[:16].split(8))),
    "broadcast": lambda values: dist.broadcast(values, 0),
    "gather": _gather,
}


def trace(folder: Path) -> None:
    """Run each operation with 2 ranks in each of `STEPS` steps, and write a trace for each operation."""
    for name, operation in OPERATIONS.items():
        values = torch.ones(2**16)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            for step in range(STEPS):
                with record_function(f"ProfilerStep#{step}"), record_function("inner"):
                    values.mul_(0.5)
                    operation(values)
        profiler.export_chrome_trace(str(folder / f"{name} {dist.get_rank()}.json"))


class _Slow(torch.autograd.Function):
    """The identity, with work in its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        _work()
        return gradient


class _Samples(torch.utils.data.Dataset[Tensor]):
    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, place: int) -> Tensor:
        if self.slow:
            _work()
        return torch.ones(4)


def _work() -> None:
    for _ in range(4):
        torch.ones(700, 700).mm(torch.ones(700, 700))


PARTS = ("loader", "forward", "backward")


def train(folder: Path) -> None:
    """Train on 3 ranks, rank 1 slow in one of `PARTS`, and write the traces of each."""
    for part in PARTS:
        slow = part if dist.get_rank() == 1 else ""
        model = DistributedDataParallel(torch.nn.Linear(4, 4))
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            batches = torch.utils.data.DataLoader(_Samples(slow == "loader"))
            for step, x in enumerate(batches):
                with record_function(f"ProfilerStep#{step}"):
                    if slow == "forward":
                        _work()
                    y = model(x)
                    (_Slow.apply(y) if slow == "backward" else y).sum().backward()
        profiler.export_chrome_trace(str(folder / f"{part} {dist.get_rank()}.json"))

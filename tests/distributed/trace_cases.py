"""Functions that run on every rank of a traced program, for `test_traces`."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
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

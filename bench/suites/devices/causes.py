"""Causes: the shares that `mucudnn causes` finds in trainings whose causes are constructed, by sleeping.

A data loader that sleeps starves a training, and a rank that sleeps lets another one wait. torch.profiler
traces both. The difference between the share that was constructed and that of `mucudnn causes` counts
in points.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

from bench.lib.ranks import values
from bench.lib.record import Record
from mucudnn.diagnosis.causes import divide
from mucudnn.diagnosis.remedies import remedies
from mucudnn.diagnosis.traces import read_traces

STEPS = 8


class _Slow(Dataset[Tensor]):
    """Samples that take a while to load."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(0.06)
        return torch.randn(64)


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield all figures."""
    with tempfile.TemporaryDirectory() as folder:
        (constructed,) = values(1, _trace, folder, _starve)
        yield _compare("a loader that sleeps", "data", constructed, folder, 1)
        (change,) = [r for r in remedies(divide(read_traces([Path(folder) / "0.json"]))) if r.cause == "data"]
        details = {"before_ms": change.before_ms, "after_ms": change.after_ms}
        metric = "part of a step that it saves, simulated"
        yield Record("causes", change.change, metric, change.saved, "", details)
    with tempfile.TemporaryDirectory() as folder:
        _, constructed = values(2, _trace, folder, _depend)
        yield _compare("a rank whose neighbour sleeps", "wait", constructed, folder, 2)


def _compare(case: str, cause: str, constructed: float, folder: str, world: int) -> Record:
    *_, last = divide(read_traces([Path(folder) / f"{rank}.json" for rank in range(world)]))
    share = last.share(cause)
    details = {"constructed": round(constructed, 4), "found": round(share, 4), "steps": last.steps}
    difference = abs(share - constructed) * 100
    return Record("causes", case, "difference of the share", difference, "points", details)


def _trace(folder: str, train: Callable[[int], float]) -> float:
    """Train under a profiler, and write its trace. Return the share of time that was constructed."""
    rank = dist.get_rank()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        share = train(rank)
    profiler.export_chrome_trace(f"{folder}/{rank}.json")
    dist.barrier()
    return share


@contextmanager
def _clock(total: list[float]) -> Iterator[None]:
    start = time.perf_counter()
    yield
    total.append(time.perf_counter() - start)


def _starve(rank: int) -> float:
    """Train on a loader that sleeps. Return the share of the time in it."""
    model, loading, all_of_it = nn.Linear(64, 64), list[float](), list[float]()
    with _clock(all_of_it):
        loader = iter(DataLoader(_Slow(), batch_size=1))
        for _ in range(STEPS):
            with _clock(loading):
                batch = next(loader)
            _compute(model, batch, 0.02)
    return sum(loading) / sum(all_of_it)


def _depend(rank: int) -> float:
    """Let rank 1 wait for a message of rank 0, which sleeps first. Return the share of waiting."""
    model, waiting, all_of_it = nn.Linear(64, 64), list[float](), list[float]()
    message = torch.zeros(64)
    with _clock(all_of_it):
        for _ in range(STEPS):
            if rank == 0:
                time.sleep(0.05)
                dist.send(message, 1)
            else:
                with _clock(waiting):
                    dist.recv(message, 0)
            _compute(model, message, 0.02)
            dist.barrier()
    return sum(waiting) / sum(all_of_it)


def _compute(model: nn.Module, batch: Tensor, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        model(batch.expand(256, 64)).sum().backward()

"""Timing and peak memory for PyTorch programs, on a GPU and on the CPU. Nothing here imports mucudnn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

MIB = 2**20
SHORT_MS = 5.0  # a run of a shorter call makes several calls in sequence, as a network does


def wall_milliseconds(device: torch.device, work: Callable[[], object]) -> float:
    """Return the ms from the start of one call on an idle device until the device is done."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return (time.perf_counter() - start) * 1e3


def median_milliseconds(device: torch.device, work: Callable[[], object], runs: int) -> float:
    """Return the median ms of one call: between CUDA events on a GPU, else by the clock.

    Each of `runs` runs makes enough calls for SHORT_MS. One call before them is not counted.
    """
    calls = max(1, min(100, int(SHORT_MS / max(wall_milliseconds(device, work), 1e-3))))
    times = [_milliseconds(device, work, calls) / calls for _ in range(runs)]
    return statistics.median(times)


def _milliseconds(device: torch.device, work: Callable[[], object], calls: int) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return (time.perf_counter() - start) * 1e3
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(calls):
        work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after))


def synchronize(device: torch.device) -> None:
    """Wait until the device is done, if it is a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_mib(device: torch.device) -> float | None:
    """Return the peak of PyTorch's allocator in MiB, cuDNN's workspaces included; None on the CPU."""
    return torch.cuda.max_memory_allocated(device) / MIB if device.type == "cuda" else None


def versions(device: torch.device) -> dict[str, object]:
    """Return the versions of PyTorch and cuDNN, and whether PyTorch allows TF32 in fp32 convolutions."""
    cudnn = torch.backends.cudnn.version() if device.type == "cuda" else None
    return {"torch": torch.__version__, "cudnn": str(cudnn), "tf32": torch.backends.cudnn.allow_tf32}

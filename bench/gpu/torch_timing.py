"""How programs of PyTorch are timed, on a GPU and on the CPU. Nothing here knows of mucudnn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

MIB = 2**20
SHORT_MS = 5.0  # below which a run is several calls, one behind the other, as a network makes them


def wall_milliseconds(device: torch.device, work: Callable[[], object]) -> float:
    """Of one call, with what it does on the host, from a device that is idle until it is done."""
    synchronize(device)
    start = time.perf_counter()
    work()
    synchronize(device)
    return (time.perf_counter() - start) * 1e3


def median_milliseconds(device: torch.device, work: Callable[[], object], runs: int) -> float:
    """Of one call: between two CUDA events around a run, or by the clock. One call before is not counted."""
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
    """Wait until a GPU is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_mib(device: torch.device) -> float | None:
    """The most that PyTorch's allocator had given out: tensors, and cuDNN's workspaces."""
    return torch.cuda.max_memory_allocated(device) / MIB if device.type == "cuda" else None


def versions(device: torch.device) -> dict[str, object]:
    """Of PyTorch and of the library that it computes with, and whether fp32 convolutions take TF32 there."""
    cudnn = torch.backends.cudnn.version() if device.type == "cuda" else None
    return {"torch": torch.__version__, "cudnn": str(cudnn), "tf32": torch.backends.cudnn.allow_tf32}

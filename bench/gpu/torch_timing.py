"""How programs of PyTorch are timed, on a GPU and on the CPU. Nothing here knows of mucudnn."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def milliseconds(device: torch.device, work: Callable[[], object]) -> float:
    """Of one call: between two CUDA events around it, or by the clock."""
    if device.type != "cuda":
        start = time.perf_counter()
        work()
        return (time.perf_counter() - start) * 1e3
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    work()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after))


def wall_milliseconds(device: torch.device, work: Callable[[], object]) -> float:
    """Of one call, with what it does on the host, until the device is done."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) * 1e3


def versions(device: torch.device) -> dict[str, str]:
    """Of PyTorch and of the library that it computes with."""
    cudnn = torch.backends.cudnn.version() if device.type == "cuda" else None
    return {"torch": torch.__version__, "cudnn": str(cudnn)}

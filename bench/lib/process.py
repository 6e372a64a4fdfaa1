"""The time and the memory that work takes in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # in glibc's malloc.h


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the bytes by which a function raises this process's memory at most."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    """Return the bytes in a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


def keep_freed_memory() -> None:
    """Let malloc keep what the program frees, as the allocators do that PyTorch's tuning guide recommends.

    Otherwise it gives large tensors back to the system. The page faults of the next step take a third of its
    time, and their number varies: equal steps differ by a fifth.
    """
    library = ctypes.CDLL(None)
    library.mallopt(_M_MMAP_MAX, 0)
    library.mallopt(_M_TRIM_THRESHOLD, -1)  # never


def give_back_freed_memory() -> None:
    """Let malloc give freed tensors back to the system at once.

    By default it keeps most of them, so that the peak of the memory depends on the order of all allocations.
    """
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**20)

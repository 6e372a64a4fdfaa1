"""`python -m bench.core_distance`: how long a cache line takes from one core to another and back.

A hypervisor may put two virtual cores on processors that share no cache, for minutes at a time. Work on two
threads takes longer then.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from pathlib import Path

from bench.shim import compile_c


def distance_ns() -> float | None:
    """Return the ns of a round trip between the first two cores of this process, or None if it has one."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        return None
    program = Path(_folder().name) / "core_distance"
    command = [str(program), *map(str, cores)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Compile bench/core_distance.c once for this process. Return the folder, which is deleted at its end."""
    folder = tempfile.TemporaryDirectory()
    compile_c(Path(__file__).with_suffix(".c"), Path(folder.name) / "core_distance", "-pthread")
    return folder


if __name__ == "__main__":
    print(f"{distance_ns()} ns")

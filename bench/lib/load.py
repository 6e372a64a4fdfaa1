"""Other programs that keep the processors busy, for measurements on a busy machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

_LOOP = "while True: pass"
# Computes and sleeps alternately, each for 1 to 300 ms, as the seed determines.
_BURSTS = """
import random, sys, time
r = random.Random(int(sys.argv[1]))
while True:
    end = time.perf_counter() + 10 ** r.uniform(-3, -0.5)
    while time.perf_counter() < end: pass
    time.sleep(10 ** r.uniform(-3, -0.5))
"""


def busy_loops(processes: int) -> AbstractContextManager[None]:
    """Keep that many processors busy during the block."""
    return _running([[_LOOP]] * processes)


def bursts(processes: int, seed: int) -> AbstractContextManager[None]:
    """Let that many processes compute in bursts during the block."""
    return _running([[_BURSTS, str(seed + number)] for number in range(processes)])


@contextmanager
def _running(programs: list[list[str]]) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", *program]) for program in programs]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()

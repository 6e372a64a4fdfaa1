"""The memory that measuring allocates goes back to the system when a measurement ends."""

import threading
from pathlib import Path

from mucudnn import _native
from mucudnn._native import parse_descriptor
from mucudnn.problems.kernels import Kernel

KERNEL = Kernel(parse_descriptor("mb16_ic16ih28_oc32_kh3_ph1")[0], "forward")
THREADS = 6


def resident_bytes() -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) * 1024


def test_threads_that_measured_keep_no_tensors(engine: _native.Engine) -> None:
    tensors = []

    def measure() -> None:
        timer = engine.timer(KERNEL, workspace=2**20, memory_cap=2**30)
        tensors.append(resident_bytes() - before)
        del timer

    before = resident_bytes()
    # One after the other, each in a thread of its own: the threads stay until all have measured.
    ended = threading.Event()
    threads = []
    for _ in range(THREADS):
        measured = threading.Event()

        def work(measured: threading.Event = measured) -> None:
            measure()
            measured.set()
            ended.wait()

        threads.append(threading.Thread(target=work))
        threads[-1].start()
        measured.wait()
    kept = resident_bytes() - before
    ended.set()
    for thread in threads:
        thread.join()
    assert min(tensors) > 32 * 2**20
    assert kept < 32 * 2**20  # a thread that is alive keeps about 4 MiB of its own

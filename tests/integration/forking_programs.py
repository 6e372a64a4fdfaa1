"""Programs that fork while another thread works."""

import os
import subprocess
import sys
from pathlib import Path

from programs import HANGS

# The beginning of every program below. The thread of `measuring` sets `stopped` at its first measurement and
# waits for `go_on`.
BEGIN = """
import logging, os, signal, sys, threading, traceback
from pathlib import Path
import numpy as np
import numpy.testing  # numpy imports it lazily, and a child could wait for ever for a thread that imports it
import mucudnn
from mucudnn.measuring.timers import RaceTimer
from mucudnn.costs.cache import Cache

numbers = np.random.default_rng(1)
W = numbers.random((16, 16, 3, 3), np.float32)
X = numbers.random((16, 16, 14, 14), np.float32)

def check(samples, padding=1):
    around = (padding, padding)
    padded = np.pad(X[:samples].astype(np.float64), ((0, 0), (0, 0), around, around))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nchwij,kcij->nkhw", windows, W)
    y = mucudnn.convolution_forward(X[:samples], W, padding=padding)
    np.testing.assert_allclose(y, expected, rtol=1e-4)

def fork(work):
    child = os.fork()
    if child == 0:
        signal.alarm(300)  # ends a child that hangs
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    return child

def status_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

measure, measured = RaceTimer.measure, []
stopped, go_on = threading.Event(), threading.Event()
at_first_measurement = []

def stop():
    stopped.set()
    go_on.wait()

def measure_after_what_is_due(timer, task):
    measured.append(task.micro_batch)
    if at_first_measurement:
        at_first_measurement.pop()()
    return measure(timer, task)

RaceTimer.measure = measure_after_what_is_due

def measuring(samples, padding=1):
    at_first_measurement.append(stop)
    thread = threading.Thread(target=check, args=(samples, padding), daemon=True)
    thread.start()
    stopped.wait()
    return thread
"""


def run_forking(program: str, tmp_path: Path, **variables: str) -> str:
    """Return the output of a process that runs the program with an empty cache."""
    # OpenBLAS has its usual threads here, which a fork loses.
    out = ("MUCUDNN_", "OPENBLAS_NUM_THREADS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(out)}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program],
        env={**kept, "MUCUDNN_CACHE": str(tmp_path / "cache.sqlite"), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout

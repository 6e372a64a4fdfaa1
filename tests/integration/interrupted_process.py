"""A process under the drop-in whose children measure into one cache, and are interrupted.

    python interrupted_process.py FULL_DISK.so

It reads a JSON list of workers from each line and starts them together, each in a child:

- work: "optimize" runs the command; "convolve" calls the Python function; "drop_in" convolves through
  libcudnn.so.9; "forks" forks twice while another thread measures; "merge" imports the journal; "trial" tries
  batch-invariant algorithms; "budget" has too little time to measure everything; "plan" writes a plan into
  the folder `-plans` beside the cache
- seed: the number of the problem
- kill_after: seconds after which the child is killed, or null
- room: bytes that the child can write before the disk is full, or null
- errors: the file for its messages

The program prints a JSON list with the exit code of each child, null for one that was killed or hangs.
"""

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

import numpy as np
import numpy.random  # numpy imports it lazily: the parent does it once for all children
import shim_client

import mucudnn
from mucudnn.cli import main as run_command

SECONDS = 600  # a child that takes longer hangs


def size_of(seed: int) -> int:
    return 5 + seed % 4


def convolve(seed: int, samples: int = 4) -> None:
    size = size_of(seed)
    x, w = np.ones((samples, 2, size, size), np.float32), np.ones((2, 2, 3, 3), np.float32)
    y = mucudnn.convolution_forward(x, w)
    assert y.shape == (samples, 2, size - 2, size - 2)
    assert np.all(y == 18)


def optimize(seed: int) -> None:
    code = run_command(["optimize", f"mb4_ic2ih{size_of(seed)}_oc2_kh3", "--workspace", "1MiB"])
    assert code == 0


def merge(seed: int) -> None:
    assert run_command(["cache", "info" if seed % 2 else "list"]) in (0, 1)  # 1: there is no cache yet


def drop_in(seed: int) -> None:
    os.environ["MUCUDNN_MODE"] = "online"
    client = shim_client.Client(ctypes.CDLL("libcudnn.so.9"))
    problem = f"f32:nchw:default:mb4_ic2ih{size_of(seed)}_oc2_kh3"
    for pass_ in ("forward", "backward_filter"):
        facts, _ = shim_client.run(client, {"problem": problem, "pass_": pass_, "habit": "get"})
        assert facts["statuses"] == [0]


def try_invariant(seed: int) -> None:
    size = size_of(seed)
    x, w = np.ones((4, 2, size, size), np.float32), np.ones((2, 2, 3, 3), np.float32)
    assert np.all(mucudnn.convolution_forward(x, w, batch_invariant=True) == 18)


def obey_budget(seed: int) -> None:
    network = f"mb4_ic2ih{size_of(seed)}_oc2_kh3"
    assert run_command(["optimize", network, "--budget", "5ms"]) == 0


def write_plan(seed: int) -> None:
    """Write a plan, or refuse in one line on a full disk. What is there afterwards is a whole plan."""
    plan = f"{os.environ['MUCUDNN_CACHE']}-plans/{seed}.plan"
    os.makedirs(os.path.dirname(plan), exist_ok=True)
    assert run_command(["optimize", f"mb4_ic2ih{size_of(seed)}_oc2_kh3", "--output", plan]) in (0, 1)


def fork_twice(seed: int) -> None:
    measuring = threading.Thread(target=convolve, args=(seed, 8), daemon=True)
    measuring.start()
    children = [start({"work": "convolve", "seed": seed + more}) for more in range(2)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    measuring.join()
    convolve(seed, 8)


WORK = {
    "optimize": optimize, "convolve": convolve, "drop_in": drop_in, "forks": fork_twice, "merge": merge,
    "trial": try_invariant, "budget": obey_budget, "plan": write_plan,
}  # fmt: skip


def start(worker: dict[str, Any], disk: ctypes.CDLL | None = None) -> int:
    """Start a child that does the work, and return its process."""
    child = os.fork()
    if child != 0:
        return child
    code = 1
    try:
        if "errors" in worker:
            file = os.open(worker["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, 1)
            os.dup2(file, 2)
            faulthandler.dump_traceback_later(0.5 * SECONDS)  # says where a child hangs
        if disk is not None and worker["room"] is not None:
            disk.leave_room(ctypes.c_long(worker["room"]))
        WORK[worker["work"]](worker["seed"])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        if disk is not None:
            disk.leave_room(ctypes.c_long(2**62))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_together(workers: list[dict[str, Any]], disk: ctypes.CDLL) -> list[int | None]:
    """Return the exit code of each worker; None if it was killed on purpose, -9 if it hangs."""
    begin = time.monotonic()
    children = {start(worker, disk): worker for worker in workers}
    codes: dict[int, int | None] = {}
    while len(codes) < len(children):
        now = time.monotonic() - begin
        for child, worker in children.items():
            if child in codes:
                continue
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
            elif now > (worker["kill_after"] or SECONDS):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                codes[child] = -9 if worker["kill_after"] is None else None
        time.sleep(0.001)
    return [codes[child] for child in children]


def main(full_disk: str) -> None:
    disk = ctypes.CDLL(full_disk)
    for line in sys.stdin:
        cache, workers = json.loads(line)
        os.environ["MUCUDNN_CACHE"] = cache
        print(json.dumps(run_together(workers, disk)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

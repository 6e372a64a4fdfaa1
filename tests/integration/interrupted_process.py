"""A process under the drop-in whose children measure into one cache, and are interrupted.

    python interrupted_process.py FULL_DISK.so

It reads a JSON list of workers from each line and starts them together, each in a child:

- work: "optimize" runs the command; "convolve" calls the Python function; "drop_in" convolves through
  libcudnn.so.9; "forks" forks twice while another thread measures; "merge" imports the journal; "trial" tries
  batch-invariant algorithms; "budget" has too little time to measure everything; "tiles" is a drop-in that
  measures algorithms in tiles; "converted" calls a converted layer; "kept" uses the kept times of a call;
  "plan", "memory plan" and "spatial plan" write plans into the folder `-plans` beside the cache
- seed: the number of the problem
- kill_after: seconds after which the child is killed, or null
- room: bytes that the child can write before the disk is full, or null
- is_user: true for a child that may not write where its user may not, unlike root
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
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.random  # numpy imports it lazily: the parent does it once for all children
import shim_client
import torch

import mucudnn
import mucudnn.torch as mt
from mucudnn._native import parse_descriptor
from mucudnn.cli import main as run_command
from mucudnn.costs.records import Machine
from mucudnn.errors import MucudnnError
from mucudnn.plans.devices.spatial_plan import SpatialPlan
from mucudnn.plans.memory.parts import PlannedStep
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.problems.kernels import Kernel
from mucudnn.solver.memory.copies import Link
from mucudnn.torch.choosing.trials import CallTrials

SECONDS = 600  # a child that takes longer hangs
KEPT = (
    Machine("host", "a device", "a library 1.0", 1),
    Kernel(parse_descriptor("ic4ih5_oc4_kh3")[0], "forward"),
)
SPATIAL_PLAN = SpatialPlan({"h": 2}, {2: "h"}, None, 1.0, 3, None, (), (), ("a note",) * 4000, ())
MEMORY_PLAN = MemoryPlan(
    network="long", batch=2, device="titanx", costs="modelled", policy="joint", memory=3000, floor=1000,
    peak=2200, average=1500.5, time_ms=8.25, unlimited_ms=4.0, exposed_ms=0.25, link=Link(1e6, 2e6, 512),
    tensors=(), kernels=(), steps=(PlannedStep("a step", 1.0, 700, 64),) * 1000,
)  # fmt: skip


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


def drop_in(seed: int, problem: str = "mb4_ic2ih{}_oc2_kh3", times: int = 1) -> None:
    os.environ["MUCUDNN_MODE"] = "online"
    client = shim_client.Client(ctypes.CDLL("libcudnn.so.9"))
    problem = f"f32:nchw:default:{problem.format(times * size_of(seed))}"
    for pass_ in ("forward", "backward_filter"):
        facts, _ = shim_client.run(client, {"problem": problem, "pass_": pass_, "habit": "get"})
        assert facts["statuses"] == [0]


def measure_tiles(seed: int) -> None:
    os.environ |= {"MUCUDNN_MEASURING": "thorough", "MUCUDNN_WORKSPACE_LIMIT": "512KiB"}
    drop_in(seed, "mb1_ic4ih{}_oc4_kh3_ph1", times=12)


def call_converted(seed: int) -> None:
    layer = mt.convert(torch.nn.Conv2d(2, 2, 3), budget="1s")
    x = torch.ones(4, 2, size_of(seed), size_of(seed))
    results = [layer(x) for _ in range(3)]  # measured when the shape comes again
    torch.testing.assert_close(results, [mt.restore(layer)(x)] * 3)


def use_kept_times(seed: int) -> None:
    ways = [{"choices": 1.0, "stock": 2.0}, {"choices": 9.0, "stock": 4.0}]
    times = CallTrials(lambda: 1e6).find_or_measure(
        (*KEPT, str(seed % 4)), lambda: ways[seed % 2], lambda ms: min(ms, key=ms.get), lambda _: 1.0
    )
    assert times in ways


def try_invariant(seed: int) -> None:
    size = size_of(seed)
    x, w = np.ones((4, 2, size, size), np.float32), np.ones((2, 2, 3, 3), np.float32)
    assert np.all(mucudnn.convolution_forward(x, w, batch_invariant=True) == 18)


def obey_budget(seed: int) -> None:
    network = f"mb4_ic2ih{size_of(seed)}_oc2_kh3"
    assert run_command(["optimize", network, "--budget", "5ms"]) == 0


def plan_path(kind: str, seed: int) -> str:
    return f"{os.environ['MUCUDNN_CACHE']}-plans/{kind}-{seed % 4}.plan"


def write_plan(seed: int) -> None:
    """Write a plan, or refuse in one line if there is no room or right. What is there is a whole plan."""
    network = f"mb4_ic2ih{size_of(seed)}_oc2_kh3"
    with suppress(SystemExit):  # the folder may be read-only
        assert run_command(["optimize", network, "--output", plan_path("Plan", seed)]) in (0, 1)


def write_long_plan(plan: MemoryPlan | SpatialPlan) -> Callable[[int], None]:
    def write(seed: int) -> None:
        try:
            for _ in range(10):
                plan.write(plan_path(type(plan).__name__, seed))
        except MucudnnError as error:
            print(f"refused: {error}")

    return write


def fork_twice(seed: int) -> None:
    measuring = threading.Thread(target=convolve, args=(seed, 8), daemon=True)
    measuring.start()
    children = [start({"work": "convolve", "seed": seed + more}) for more in range(2)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    measuring.join()
    convolve(seed, 8)


WORK = {
    "optimize": optimize, "convolve": convolve, "drop_in": drop_in, "forks": fork_twice, "merge": merge,
    "trial": try_invariant, "budget": obey_budget, "tiles": measure_tiles, "converted": call_converted,
    "kept": use_kept_times, "plan": write_plan, "memory plan": write_long_plan(MEMORY_PLAN),
    "spatial plan": write_long_plan(SPATIAL_PLAN),
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
        if worker.get("is_user"):
            drop_capabilities()
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


def drop_capabilities() -> None:
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, none) == 0


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

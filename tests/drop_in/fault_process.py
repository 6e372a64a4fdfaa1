"""A program that plays a script under the drop-in while one call or allocation below it fails.

    python fault_process.py FAILING_CALLS.so FAILING_MEMORY.so SCRIPTS.pickle TRACES.pickle

It reads lines with a script's number, "call" or "memory", and the number of the call or allocation that
fails, 0 for none. A child plays the script twice, the second time without a fault. It writes both traces into
TRACES, with the counts of both plays. The program then prints a line: "played", or how the child failed.
"""

import ctypes
import os
import pickle
import signal
import sys
import time
from typing import Any

from player import Player
from scripts import Step

SECONDS = 300  # a script that takes longer counts as hanging


def main(failing_calls: str, failing_memory: str, scripts: str, traces: str) -> None:
    library = ctypes.CDLL("libcudnn.so.9")
    memory, host = ctypes.CDLL(failing_memory), os.environ["HOST_ENGINE"]
    ctypes.CDLL(host)  # the parent opens both once for all children
    calls = ctypes.CDLL(failing_calls)
    watch(memory, "shim/libcudnn.so.9", host, "libstdc++.so.6")
    with open(scripts, "rb") as file:
        steps = pickle.load(file)
    for line in sys.stdin:
        number, kind, failing = line.split()
        child = os.fork()
        if child == 0:
            outcome = play_twice(library, calls, memory, steps[int(number)], kind, int(failing))
            with open(traces, "wb") as written:
                pickle.dump(outcome, written)
            os._exit(0)
        print(wait(child), flush=True)


def watch(memory: ctypes.CDLL, *names: str) -> None:
    """Watch the allocations of these libraries."""
    memory.watch_code.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
    memory.fail_allocation.argtypes = (ctypes.c_long,)
    memory.allocations.restype = ctypes.c_long
    paths = tuple(os.path.realpath(name) if name.startswith("/") else name for name in names)
    with open("/proc/self/maps", encoding="ascii") as file:
        for line in file:
            span, access, *_, path = line.split()
            if "x" in access and path.endswith(paths):
                begin, end = span.split("-")
                memory.watch_code(int(begin, 16), int(end, 16))


def play_twice(
    library: ctypes.CDLL, calls: ctypes.CDLL, memory: ctypes.CDLL, steps: list[Step], kind: str, failing: int
) -> dict[str, Any]:
    """Return both traces, the counts of calls and allocations in each play, and facts about the fault."""
    calls.failed_call.restype = ctypes.c_char_p
    played = []
    for armed in (failing, 0):
        calls.fail_call(armed if kind == "call" else 0, 0)
        memory.fail_allocation(armed if kind == "memory" else 0)
        player = Player(library)
        trace = player.play(steps)
        counts = {"call": calls.calls(), "memory": memory.allocations()}
        memory.fail_allocation(0)
        player.close()
        played.append((trace, counts))
    return {"played": played, "failed": calls.failed_call().decode(), "live": calls.live_descriptors()}


def wait(child: int) -> str:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "played" if code == 0 else f"it ends with {code}"
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "it hangs"


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A program that makes one call or allocation after another fail under the shim, each in a forked child.

    python shim_faults.py CASES.json FAILING once|sticky|memory

FAILING is a library with fail_call(), calls() and failed_call(). For "memory" it is a preloaded library with
fail_allocation() and allocations(). Each child runs all cases and prints its outcome as a line of JSON. If
FAILING is a CUDA runtime, the outcome has the error that cudaGetLastError() reports at the end.
"""

import ctypes
import json
import os
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy.random  # noqa: F401  (numpy imports it lazily: the parent does it once for all children)
import shim_client

Arm = Callable[[int], None]


def failing_calls(library: ctypes.CDLL, sticky: bool) -> tuple[Arm, Callable[[], int], Callable[[], str]]:
    library.failed_call.restype = ctypes.c_char_p
    return (
        lambda number: library.fail_call(number, sticky),
        library.calls,
        lambda: str(library.failed_call().decode()),
    )


def failing_allocations(library: ctypes.CDLL) -> tuple[Arm, Callable[[], int], Callable[[], str]]:
    with open("/proc/self/maps", encoding="ascii") as file:
        spans = [
            line.split()[0].split("-") for line in file if re.search(r"shim/libcudnn\.so\.9$", line.strip())
        ]
    begin, end = int(spans[0][0], 16), int(spans[-1][1], 16)
    library.fail_allocation.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_long]
    library.allocations.restype = ctypes.c_long
    return (
        lambda number: library.fail_allocation(begin, end, number),
        library.allocations,
        lambda: "an allocation",
    )


def attempt(library: ctypes.CDLL, cases: list[dict[str, Any]]) -> dict[str, Any]:
    done: list[Any] = []
    try:
        for case in cases:
            facts, output = shim_client.run(shim_client.Client(library), case)
            done.append({"statuses": facts["statuses"], "output": output.view("f4").tolist()})
    except AssertionError as error:
        return {"error": str(error), "done": done}
    return {"error": "", "done": done}


def main(cases_path: str, failing: str, kind: str) -> None:
    with open(cases_path, encoding="utf-8") as file:
        cases = json.load(file)
    library = ctypes.CDLL("libcudnn.so.9")
    faults = ctypes.CDLL(failing)
    ctypes.CDLL(os.environ["HOST_ENGINE"])  # the parent opens it once for all children
    arm, count, failed = (
        failing_allocations(faults) if kind == "memory" else failing_calls(faults, kind == "sticky")
    )
    number, most = 0, 0
    while number <= most:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            arm(number)
            outcome = attempt(library, cases)
            facts = {"number": number, "failed": failed(), "count": count()}
            arm(0)
            if hasattr(faults, "cudaGetLastError"):
                facts["last_error"] = faults.cudaGetLastError()
            line = json.dumps({**outcome, **facts})
            with os.fdopen(writer, "w") as pipe:
                pipe.write(line)
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            line = pipe.read()
        assert os.waitpid(child, 0)[1] == 0, f"number {number} ended the program"
        print(line)
        if number == 0:
            most = json.loads(line)["count"]
        number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])

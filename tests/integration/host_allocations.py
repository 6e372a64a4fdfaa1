"""A program that makes one allocation after another fail in the host engine's legacy convolutions.

    python host_allocations.py FAILING PROBLEM

FAILING is failing_malloc.c, built and preloaded. For each pass and algorithm the program prints a line: their
names, the number of allocations of a call, and how many of the calls with a failure left a
wrong output: neither that of a complete call nor, with an error, the output as it was.
"""

import ctypes
import sys

import numpy as np
from host_abi import BACKWARD_DATA, BACKWARD_FILTER, FORWARD
from shim_client import OUTPUT, Client, Convolution, operands

from mucudnn._native import Engine, host_library, parse_descriptor
from mucudnn.problems.kernels import Kernel

ALGORITHMS = {"forward": FORWARD, "backward_data": BACKWARD_DATA, "backward_filter": BACKWARD_FILTER}


def code_of(name: str) -> tuple[int, int]:
    """Return the addresses at which a library's memory begins and ends."""
    with open("/proc/self/maps", encoding="ascii") as file:
        spans = [line.split()[0].split("-") for line in file if line.strip().endswith(name)]
    return int(spans[0][0], 16), int(spans[-1][1], 16)


def try_each(faults: ctypes.CDLL, code: tuple[int, int], convolution: Convolution, algorithm: int) -> str:
    """Let each allocation of one call fail. Return the number of allocations and of wrong outputs."""
    memory, workspace = operands(convolution.problem), convolution.workspace_size(algorithm)
    output = memory[OUTPUT[convolution.pass_]]
    start = output.copy()

    def execute(failing: int) -> int:
        output[:] = start
        faults.fail_allocation(*code, failing)
        return convolution.execute(memory, algorithm, workspace, 1.0, 0.5)

    assert [execute(0), execute(0)] == [0, 0]  # the first call allocates what the thread keeps
    count, complete = int(faults.allocations()), output.copy()
    wrong = 0
    for number in range(1, count + 1):
        status = execute(number)
        wrong += not np.array_equal(output, start if status else complete)
    faults.fail_allocation(0, 0, 0)
    return f"{count} {wrong}"


def main(failing: str, text: str) -> None:
    faults, library = ctypes.CDLL(failing), ctypes.CDLL(host_library())
    faults.fail_allocation.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_long]
    faults.allocations.restype = ctypes.c_long
    library.mucudnnHostSetThreads(1)
    code, problem = code_of("/libmucudnn_host.so"), parse_descriptor(text)[0]
    for pass_, algorithms in ALGORITHMS.items():
        for candidate in Engine(host_library()).enumerate(Kernel(problem, pass_)):
            if candidate.status == "CUDNN_STATUS_SUCCESS" and candidate.algorithm in algorithms:
                convolution = Convolution(Client(library), problem, pass_)
                outcome = try_each(faults, code, convolution, algorithms[candidate.algorithm])
                print(pass_, candidate.algorithm, outcome)


if __name__ == "__main__":
    main(*sys.argv[1:])

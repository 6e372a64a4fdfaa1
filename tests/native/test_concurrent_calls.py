"""Callers that share the host engine's threads get the same bits as a caller that runs alone.

The host engine reports every algorithm as deterministic: a busy thread pool may change the thread of a piece,
but never the pieces of a product. `.ci/run` runs these again under the thread sanitizer, with one call of
each caller: the sanitizer finds a race by what orders two accesses, and need not see both at one moment.

TEST_CASES=1: let each caller make one call instead of three
"""

import threading
from collections.abc import Callable
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
from random_cases import cases
from reference import IMPLICIT_GEMM, OUTPUT, PASSES

from mucudnn._native import Division, Engine, Problem, host_library
from mucudnn.problems.kernels import Kernel

Bytes = npt.NDArray[np.uint8]
CALLERS, CALLS, THREADS = 4, len(cases(3)), 3
SPATIAL = {"images": (29, 27), "volumes": (5, 13, 11)}
# How many algorithms run; all other problems have implicit GEMM alone.
ALGORITHMS = {("f32", 1): 4, ("f16", 1): 3, ("bf16", 1): 3, ("f32", 2): 2}


def problem_of(data_type: str, layout: str, groups: int, input_: tuple[int, ...], **more: int) -> Problem:
    return Problem(
        mini_batch=5, in_channels=18, out_channels=20, input=input_, kernel=(3,) * len(input_), padding=1,
        groups=groups, data_type=data_type, layout=layout, **more,
    )  # fmt: skip


class Call:
    """A call of one algorithm on the whole mini-batch, with random tensors that all calls share."""

    def __init__(self, engine: Engine, problem: Problem, pass_: str, algorithm: str) -> None:
        self.engine, self.problem, self.output = engine, problem, OUTPUT[pass_]
        self.division: Division = engine.prepare(Kernel(problem, pass_), [(problem.mini_batch, algorithm)])

    def tensors(self) -> dict[str, Bytes]:
        p = self.problem
        tensors = {}
        for seed, (name, count) in enumerate((("x", p.x_elements), ("w", p.w_elements), ("y", p.y_elements))):
            tensors[name] = np.empty(count * p.element_size, np.uint8)
            memory = self.engine.borrow(tensors[name].ctypes.data, tensors[name].size)
            memory.fill_random(p.data_type, count, seed)
        return tensors

    def __call__(self) -> bytes:
        tensors = self.tensors()
        workspace = self.engine.allocate(self.division.workspace)
        self.division.run(*(tensors[name].ctypes.data for name in "xwy"), workspace)
        return tensors[self.output].tobytes()


def check(call: Callable[[], bytes]) -> None:
    """Check that callers that start together get the bits of a caller that runs alone."""
    alone, together, same = call(), threading.Barrier(CALLERS), list[bool]()

    def work() -> None:
        together.wait()
        same.extend(call() == alone for _ in range(CALLS))

    callers = [threading.Thread(target=work) for _ in range(CALLERS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert same == [True] * (CALLERS * CALLS)


@pytest.mark.parametrize("data_type", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("spatial", SPATIAL)
def test_callers_of_more_threads_at_once_get_the_bits_of_a_lone_call(
    spatial: str, pass_: str, data_type: str
) -> None:
    engine = Engine(host_library(), threads=THREADS)
    for layout, groups in product(("nchw", "nhwc"), (1, 2)):
        problem = problem_of(data_type, layout, groups, SPATIAL[spatial])
        assert problem.flops > 8e6  # smaller problems run on one thread
        algorithms = [
            c.algorithm
            for c in engine.enumerate(Kernel(problem, pass_))
            if c.status == "CUDNN_STATUS_SUCCESS"
        ]
        assert len(algorithms) == ALGORITHMS.get((data_type, groups), 1)
        for algorithm in algorithms:
            check(Call(engine, problem, pass_, algorithm))


@pytest.mark.parametrize("pass_", PASSES)
def test_strided_convolutions_of_more_threads_have_the_same_bits(pass_: str) -> None:
    engine = Engine(host_library(), threads=THREADS)
    problem = problem_of("f32", "nchw", 1, (37, 41), stride=2)
    assert problem.flops > 8e6
    for algorithm in ("GEMM", "IMPLICIT_GEMM") if pass_ == "forward" else ("ALGO_0", "ALGO_1"):
        check(Call(engine, problem, pass_, algorithm))


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_depthwise_convolutions_of_more_threads_have_the_same_bits(layout: str, pass_: str) -> None:
    engine = Engine(host_library(), threads=THREADS)
    problem = Problem(
        mini_batch=5, in_channels=40, out_channels=40, groups=40, input=(61, 53), kernel=(5, 3), padding=1,
        layout=layout,
    )  # fmt: skip
    assert problem.flops > 8e6
    check(Call(engine, problem, pass_, IMPLICIT_GEMM[pass_]))

"""A bias in the write of the output: with the bits of a convolution that is added to an output of biases."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from drawn_problems import TRANSFORMS, depthwise_problems, divisions, problems, transformed_problems
from hypothesis import given, settings
from hypothesis import strategies as st
from problem_arrays import random_values
from random_cases import examples
from reference import ALL_TYPES

from mucudnn._native import Division, Engine, EngineError, KeptFilter, Problem, channel_counts, host_library
from mucudnn.costs.records import SUCCESS
from mucudnn.problems.kernels import Kernel

ENGINES = {threads: Engine(host_library(), threads=threads) for threads in (1, 2, 3)}
ALGORITHMS = ("IMPLICIT_GEMM", "GEMM", *TRANSFORMS)
Array = npt.NDArray[Any]


class Run:
    """The tensors of a forward pass with a bias, and their results."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        counts = problem.x_elements, problem.w_elements, problem.out_channels
        self.x, self.w, self.bias = (
            random_values(problem.data_type, count, seed) for seed, count in enumerate(counts)
        )

    def bits(self, division: Division, kept: KeptFilter | None = None) -> Array:
        """Return the output of a run that gets the bias, into memory whose values are NaN."""
        y = np.full(self.problem.y_elements * self.problem.element_size, 0xFF, np.uint8)
        self._run(division, y, 0.0, kept, self.bias.ctypes.data)
        return y.view(self.x.dtype)

    def bits_of_addition(self, division: Division) -> Array:
        """Return the output of a run that adds to an output of biases."""
        channels, count = self.problem.out_channels, self.problem.y_elements
        rows = count // channels // self.problem.mini_batch
        by_channel = [self.problem.mini_batch, channels, rows]
        if self.problem.layout == "nhwc":
            y = np.tile(self.bias, count // channels)
        else:
            y = np.broadcast_to(self.bias[:, None], by_channel).reshape(-1).copy()
        self._run(division, y, 1.0, None, 0)
        return y

    def _run(self, division: Division, y: Array, beta: float, kept: KeptFilter | None, bias: int) -> None:
        workspace = ENGINES[1].allocate(division.workspace) if division.workspace else None
        addresses = self.x.ctypes.data, self.w.ctypes.data, y.ctypes.data
        division.run(*addresses, workspace, 1.0, beta, 0, kept, bias)


def runnable(problem: Problem) -> list[str]:
    listed = ENGINES[1].enumerate(Kernel(problem, "forward"))
    return [c.algorithm for c in listed if c.algorithm in ALGORITHMS and c.status == SUCCESS]


def assert_same_bits(problem: Problem, threads: int, slices: Sequence[tuple[int, str]]) -> None:
    division, run = ENGINES[threads].prepare(Kernel(problem, "forward"), slices), Run(problem)
    np.testing.assert_array_equal(run.bits(division), run.bits_of_addition(division))


any_problem = st.one_of(problems(data_types=ALL_TYPES), transformed_problems(), depthwise_problems())
each_layout = pytest.mark.parametrize("layout", ["nchw", "nhwc"])
each_type = pytest.mark.parametrize("data_type", ALL_TYPES)


@settings(max_examples=examples(300))
@given(data=st.data(), problem=any_problem, threads=st.sampled_from([1, 2, 3]))
def test_a_bias_gives_the_bits_of_an_addition(data: st.DataObject, problem: Problem, threads: int) -> None:
    algorithms = st.sampled_from(runnable(problem))
    sizes = data.draw(divisions(problem.mini_batch))
    assert_same_bits(problem, threads, [(size, data.draw(algorithms)) for size in sizes])


@each_layout
@each_type
@pytest.mark.parametrize("channels", [(64, 256), (400, 33), (24, 600)])
@pytest.mark.parametrize("kernel", [1, 3])
def test_all_parts_of_a_large_output_get_the_bias(
    layout: str, data_type: str, channels: tuple[int, int], kernel: int
) -> None:
    problem = Problem(
        mini_batch=2, in_channels=channels[0], out_channels=channels[1], input=(29, 31),
        kernel=(kernel, kernel), padding=kernel // 2, layout=layout, data_type=data_type,
    )  # fmt: skip
    for algorithm in runnable(problem):
        for threads in (1, 2):
            assert_same_bits(problem, threads, [(2, algorithm)])


@each_layout
@pytest.mark.parametrize("data_type", ["f32", "bf16"])
def test_tiles_of_a_sample_get_the_bias(layout: str, data_type: str) -> None:
    problem = Problem(
        mini_batch=2, in_channels=19, out_channels=21, input=(23, 17), kernel=(3, 3), padding=1,
        layout=layout, data_type=data_type,
    )  # fmt: skip
    for algorithm in runnable(problem):
        for steps in (5, 8):
            assert_same_bits(problem, 1, [(1, f"{algorithm}.tile={steps}")] * 2)


@each_layout
@pytest.mark.parametrize("groups", [1, 2, 32])
@each_type
def test_each_group_of_channels_gets_its_own_bias(layout: str, groups: int, data_type: str) -> None:
    problem = Problem(
        mini_batch=2, in_channels=32, out_channels=64, input=(9, 7), kernel=(3, 3), padding=1,
        groups=groups, layout=layout, data_type=data_type,
    )  # fmt: skip
    kernel = Kernel(problem, "forward")
    channels, run = channel_counts(kernel)[0], Run(problem)
    for algorithm in runnable(problem):
        parts = [(channels, [(1, algorithm), (1, algorithm)])] * 2
        division = ENGINES[1].prepare_groups(kernel, parts)
        np.testing.assert_array_equal(run.bits(division), run.bits_of_addition(division))


@pytest.mark.parametrize("algorithm", TRANSFORMS)
def test_a_kept_filter_and_a_bias_go_together(algorithm: str) -> None:
    problem = Problem(mini_batch=2, in_channels=40, out_channels=70, input=(13, 9), kernel=(3, 3), padding=1)
    division, run = ENGINES[2].prepare(Kernel(problem, "forward"), [(2, algorithm)]), Run(problem)
    kept = division.keep_filter(run.w.ctypes.data)
    np.testing.assert_array_equal(run.bits(division, kept), run.bits(division))


@pytest.mark.parametrize(("pass_", "beta"), [("forward", 0.5), ("backward_data", 0.0)])
def test_only_a_forward_pass_that_overwrites_takes_a_bias(pass_: str, beta: float) -> None:
    problem = Problem(mini_batch=1, in_channels=2, out_channels=3, input=(4, 4), kernel=(1, 1))
    algorithm = {"forward": "IMPLICIT_GEMM", "backward_data": "ALGO_1"}[pass_]
    division, run = ENGINES[1].prepare(Kernel(problem, pass_), [(1, algorithm)]), Run(problem)
    y = np.zeros(problem.y_elements, np.float32)
    addresses = run.x.ctypes.data, run.w.ctypes.data, y.ctypes.data
    with pytest.raises(EngineError, match="a bias is added in the forward pass, with beta 0"):
        division.run(*addresses, None, 1.0, beta, 0, None, run.bias.ctypes.data)

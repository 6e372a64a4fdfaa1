"""Depthwise convolutions of implicit GEMM, which computes them without a matrix product."""

import numpy as np
import pytest
from drawn_problems import depthwise_problems, divisions
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import IMPLICIT_GEMM, PASSES, CheckedKernel, assert_each_algorithm_is_right

from mucudnn._native import Engine, Problem, host_library
from mucudnn.problems.kernels import Kernel

betas = st.sampled_from([0.0, 1.0, 0.5])
each_layout = pytest.mark.parametrize("layout", ["nchw", "nhwc"])
each_pass = pytest.mark.parametrize("pass_", PASSES)


@settings(max_examples=examples(60))
@given(data=st.data(), problem=depthwise_problems(), pass_=st.sampled_from(PASSES[:2]), beta=betas)
def test_a_division_of_a_depthwise_convolution_gives_the_same_bits(
    engine: Engine, data: st.DataObject, problem: Problem, pass_: str, beta: float
) -> None:
    checked = CheckedKernel(engine, Kernel(problem, pass_))
    parts = [(size, IMPLICIT_GEMM[pass_]) for size in data.draw(divisions(problem.mini_batch))]
    whole = checked.run([(problem.mini_batch, IMPLICIT_GEMM[pass_])], beta=beta)
    np.testing.assert_array_equal(checked.run(parts, beta=beta), whole)


def large(layout: str, data_type: str = "f32", **sizes: int) -> Problem:
    """Return a problem that is large enough for several threads, and whose images are several bands."""
    return Problem(
        mini_batch=2, in_channels=70, out_channels=70, groups=70, input=(101, 43), kernel=(5, 3), padding=2,
        data_type=data_type, layout=layout, **sizes,
    )  # fmt: skip


@each_layout
@each_pass
@pytest.mark.parametrize("stride", [1, 2])
def test_any_number_of_threads_gives_a_depthwise_convolution_the_same_bits(
    layout: str, pass_: str, stride: int
) -> None:
    problem = large(layout, stride=stride)
    assert problem.flops > 8e6 / stride**2  # smaller ones stay on one thread
    results = [
        CheckedKernel(Engine(host_library(), threads=threads), Kernel(problem, pass_)).run(
            [(2, IMPLICIT_GEMM[pass_])], beta=0.5
        )
        for threads in (1, 2, 3, 5)
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@each_layout
@each_pass
@pytest.mark.parametrize("data_type", ["f32", "bf16"])
def test_large_images_agree_with_the_definition(
    engine: Engine, layout: str, pass_: str, data_type: str
) -> None:
    checked = CheckedKernel(engine, Kernel(large(layout, data_type), pass_))
    assert_each_algorithm_is_right(checked, 1.0, 0.0)


@pytest.mark.parametrize(
    "odd",
    [
        {"padding": (1, 40000)},
        {"padding": (40000, 1)},
        {"stride": 2**20},
        {"stride": 1, "input": (3, 20000)},
        {"stride": 1, "input": (20000, 3)},
        {"dilation": (1, 2**16), "padding": (1, 2**16)},
        {"kernel": (1, 300), "padding": (0, 150)},
    ],
    ids=str,
)
@each_pass
def test_extreme_sizes_agree_with_the_definition(
    engine: Engine, pass_: str, odd: dict[str, int | tuple[int, int]]
) -> None:
    sizes = {"input": (3, 2), "kernel": (3, 3), "stride": 2**16, "padding": 1, "groups": 5} | odd
    problem = Problem(mini_batch=1, in_channels=5, out_channels=5, **sizes)
    assert_each_algorithm_is_right(CheckedKernel(engine, Kernel(problem, pass_)), 1.0, 0.5)

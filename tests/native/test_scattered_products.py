"""backward_data into few channels, whose products implicit GEMM adds to dx on processors without AVX-512."""

import numpy as np
import pytest
from guarded_tensors import assert_keeps_to_its_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import EPSILON, CheckedKernel, assert_each_algorithm_is_right

from mucudnn._native import Engine, Problem, host_library
from mucudnn.problems.kernels import Kernel

betas = st.sampled_from([0.0, 1.0, 0.5])


@st.composite
def first_layers(draw: st.DrawFn) -> Problem:
    """Draw images and volumes with at least twice as many output channels as input channels."""
    rank = draw(st.sampled_from((2, 2, 3)))
    most = 17 if rank == 2 else 6
    input_ = tuple(draw(st.integers(1, most)) for _ in range(rank))
    kernel = tuple(draw(st.integers(1, 5 if rank == 2 else 3)) for _ in range(rank))
    dilation = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    extent = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    least = tuple(max(0, (e - i + 1) // 2) for e, i in zip(extent, input_, strict=True))
    groups, channels = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    return Problem(
        mini_batch=draw(st.integers(1, 3)),
        in_channels=groups * channels,
        out_channels=groups * channels * draw(st.integers(2, 4)),
        input=input_,
        kernel=kernel,
        stride=tuple(draw(st.integers(1, 4)) for _ in range(rank)),
        padding=tuple(draw(st.integers(p, p + 3)) for p in least),
        dilation=dilation,
        groups=groups,
        layout=draw(st.sampled_from(("nchw", "nhwc"))),
    )


@settings(max_examples=examples(150))
@given(problem=first_layers(), alpha=st.sampled_from([1.0, -0.5]), beta=betas)
def test_a_gradient_of_few_channels_agrees_with_the_definition(
    engine: Engine, problem: Problem, alpha: float, beta: float
) -> None:
    assert_each_algorithm_is_right(CheckedKernel(engine, Kernel(problem, "backward_data")), alpha, beta)


@pytest.mark.parametrize("at_end", [True, False])
@settings(max_examples=examples(60))
@given(problem=first_layers(), beta=betas)
def test_no_byte_outside_the_tensors_is_read_or_written(
    engine: Engine, at_end: bool, problem: Problem, beta: float
) -> None:
    assert_keeps_to_its_tensors(engine, problem, "backward_data", beta=beta, at_end=at_end)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("sizes", [{"stride": 2}, {"dilation": 3}, {"groups": 2}, {"stride": 6}], ids=str)
def test_bands_of_large_images_agree_with_the_definition_and_beta_0_reads_no_nan(
    layout: str, threads: int, sizes: dict[str, int]
) -> None:
    problem = Problem(
        mini_batch=1, in_channels=4, out_channels=144, input=(131, 83), kernel=(7, 5), padding=3,
        layout=layout, **sizes,
    )  # fmt: skip
    assert problem.flops > 8e6  # smaller ones stay on one thread
    checked = CheckedKernel(Engine(host_library(), threads=threads), Kernel(problem, "backward_data"))
    result = checked.run([(1, "ALGO_1")], over=float("nan"))
    assert np.linalg.norm(result - checked.exact()) <= 2 * EPSILON["f32"] * checked.magnitude()

"""backward_data into few channels, whose products implicit GEMM adds to dx on processors without AVX-512."""

import pytest
from drawn_problems import first_layers
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import CheckedKernel, assert_each_algorithm_is_right

from mucudnn._native import Engine, Problem, host_library
from mucudnn.problems.kernels import Kernel

betas = st.sampled_from([0.0, 1.0, 0.5])


@settings(max_examples=examples(150))
@given(problem=first_layers(), alpha=st.sampled_from([1.0, -0.5]), beta=betas)
def test_a_gradient_of_few_channels_agrees_with_the_definition(
    engine: Engine, problem: Problem, alpha: float, beta: float
) -> None:
    assert_each_algorithm_is_right(CheckedKernel(engine, Kernel(problem, "backward_data")), alpha, beta)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("sizes", [{"stride": 2}, {"dilation": 3}, {"groups": 2}, {"stride": 6}], ids=str)
def test_bands_of_large_images_agree_with_the_definition(
    layout: str, threads: int, sizes: dict[str, int]
) -> None:
    problem = Problem(
        mini_batch=1, in_channels=4, out_channels=144, input=(131, 83), kernel=(7, 5), padding=3,
        layout=layout, **sizes,
    )  # fmt: skip
    assert problem.flops > 8e6  # smaller ones stay on one thread
    checked = CheckedKernel(Engine(host_library(), threads=threads), Kernel(problem, "backward_data"))
    assert_each_algorithm_is_right(checked, 1.0, 0.0)

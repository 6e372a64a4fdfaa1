"""The array functions agree with the definition for every pass, layout, type, scale and division."""

import numpy as np
import pytest
from drawn_problems import divisions, problems
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import plan_by
from problem_arrays import TYPES, in_layout, tensors_of
from random_cases import examples
from reference import EPSILON, IMPLICIT_GEMM, OUTPUT, PASSES, convolve

import mucudnn
from mucudnn._native import Problem, most_slices
from mucudnn.problems.kernels import Kernel


def channels_first(array: np.ndarray, layout: str) -> np.ndarray:
    return array if layout == "nchw" else np.moveaxis(array, -1, 1)


def call(problem: Problem, pass_: str, tensors: dict[str, np.ndarray], **options: object) -> np.ndarray:
    t = {name: in_layout(tensor, problem.layout) for name, tensor in tensors.items()}
    options |= {
        name: getattr(problem, name) for name in ("stride", "padding", "dilation", "groups", "layout")
    }
    if pass_ == "forward":
        return mucudnn.convolution_forward(t["x"], t["w"], **options)
    if pass_ == "backward_data":
        return mucudnn.convolution_backward_data(t["y"], t["w"], t["x"].shape, **options)
    return mucudnn.convolution_backward_filter(t["x"], t["y"], t["w"].shape, **options)


@settings(max_examples=examples(200))
@given(
    kernel_and_sizes=st.tuples(problems(data_types=tuple(TYPES)), st.sampled_from(PASSES)).flatmap(
        lambda k: st.tuples(st.just(k), divisions(k[0].mini_batch, most_slices(Kernel(*k))))
    ),
    alpha=st.sampled_from([1.0, -0.5]),
    beta=st.sampled_from([0.0, 1.0, 0.5]),
)
def test_every_division_agrees_with_the_definition(
    kernel_and_sizes: tuple[tuple[Problem, str], list[int]], alpha: float, beta: float
) -> None:
    (problem, pass_), sizes = kernel_and_sizes
    tensors, plan = tensors_of(problem), plan_by({pass_: IMPLICIT_GEMM[pass_]}, problem, *sizes, workspace=0)
    before = tensors[OUTPUT[pass_]]
    out = in_layout(before, problem.layout).copy()
    result = call(problem, pass_, tensors, plan=plan, alpha=alpha, beta=beta, out=out)
    assert result is out
    exact = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}
    expected = alpha * convolve(problem, pass_, **exact) + beta * exact[OUTPUT[pass_]]
    scale = abs(alpha) * convolve(problem, pass_, **exact) + beta * exact[OUTPUT[pass_]]
    error = np.linalg.norm(channels_first(result, problem.layout) - expected)
    assert error <= 4 * EPSILON[problem.data_type] * np.linalg.norm(scale)


@pytest.mark.usefixtures("cache_path")
@pytest.mark.parametrize("pass_", PASSES)
def test_without_out_a_new_array_of_the_same_type_comes_back(pass_: str) -> None:
    problem = Problem(mini_batch=2, in_channels=2, out_channels=3, input=(5, 6), kernel=(3, 3))
    tensors = tensors_of(problem)
    result = call(problem, pass_, tensors)
    assert type(result) is np.ndarray
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, convolve(problem, pass_, **tensors), rtol=1e-3, atol=1e-4)

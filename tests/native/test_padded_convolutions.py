"""Convolutions with much padding: their products leave out the taps that read padding alone."""

import numpy as np
import pytest
from guarded_tensors import assert_keeps_to_its_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import ALL_TYPES, PASSES, CheckedKernel, assert_each_algorithm_is_right

from mucudnn._native import Engine, Problem, host_library
from mucudnn.problems.kernels import Kernel

each_pass = pytest.mark.parametrize("pass_", PASSES)
each_layout = pytest.mark.parametrize("layout", ["nchw", "nhwc"])


@st.composite
def padded_problems(draw: st.DrawFn, *, data_types: tuple[str, ...] = ALL_TYPES) -> Problem:
    """Draw images and volumes whose filter is about as large as they are, with channels enough to divide."""
    rank = draw(st.sampled_from((2, 2, 3)))
    kernel = tuple(draw(st.sampled_from((2, 3, 3, 1, 5))) for _ in range(rank))
    input_ = tuple(draw(st.integers(8, 14) if rank == 2 else st.integers(3, 6)) for _ in range(rank))
    dilation = tuple(
        draw(st.integers((size + k) // (k + 1), size)) for size, k in zip(input_, kernel, strict=True)
    )
    stride = tuple(draw(st.sampled_from((1, 1, 1, 2, 3))) for _ in range(rank))
    extent = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    least = tuple(max(0, (e - i + 1) // 2) for e, i in zip(extent, input_, strict=True))
    groups = draw(st.sampled_from((1, 1, 1, 2)))
    return Problem(
        mini_batch=draw(st.integers(2, 4)),
        in_channels=groups * draw(st.sampled_from((33, 70))),
        out_channels=groups * draw(st.sampled_from((60, 130))),
        input=input_,
        kernel=kernel,
        stride=stride,
        padding=tuple(draw(st.integers(p, p + 2)) for p in least),
        dilation=dilation,
        groups=groups,
        data_type=draw(st.sampled_from(data_types)),
        layout=draw(st.sampled_from(("nchw", "nhwc"))),
    )


@settings(max_examples=examples(40))
@given(problem=padded_problems(), pass_=st.sampled_from(PASSES), beta=st.sampled_from([0.0, 0.5]))
def test_every_algorithm_agrees_with_the_definition(
    engine: Engine, problem: Problem, pass_: str, beta: float
) -> None:
    assert_each_algorithm_is_right(CheckedKernel(engine, Kernel(problem, pass_)), -0.5, beta)


@pytest.mark.parametrize("at_end", [True, False])
@settings(max_examples=examples(30))
@given(problem=padded_problems(data_types=("f32", "bf16")), pass_=st.sampled_from(PASSES))
def test_no_byte_outside_the_tensors_is_read_or_written(
    engine: Engine, at_end: bool, problem: Problem, pass_: str
) -> None:
    assert_keeps_to_its_tensors(engine, problem, pass_, beta=0.5, at_end=at_end)


def dilated(**changes: object) -> Problem:
    """Return a 3×3 whose outer taps each read padding at about half of the positions, in both directions."""
    sizes = {"mini_batch": 2, "in_channels": 140, "out_channels": 140, "input": (28, 26), "padding": 12}
    return Problem(**{**sizes, "kernel": (3, 3), "dilation": 12, **changes})  # type: ignore[arg-type]


@each_layout
@each_pass
def test_parts_on_several_threads_are_right_and_read_no_output_with_beta_0(layout: str, pass_: str) -> None:
    checked = CheckedKernel(Engine(host_library(), threads=3), Kernel(dilated(layout=layout), pass_))
    exact = checked.exact()
    for algorithm in checked.runnable(2):
        result = checked.run([(2, algorithm)], over=float("nan"))
        assert np.linalg.norm(result - exact) <= checked.tolerance(algorithm), algorithm


@pytest.mark.parametrize(("pass_", "explicit"), [("forward", "GEMM"), ("backward_data", "ALGO_0")])
def test_the_columns_of_explicit_gemm_hold_no_tap_that_reads_padding_alone(
    engine: Engine, pass_: str, explicit: str
) -> None:
    padded, inner = dilated(), dilated(dilation=1, padding=1)  # the same sizes of x and y
    with_padding, without = (
        next(c.workspace for c in engine.enumerate(Kernel(p, pass_)) if c.algorithm == explicit)
        for p in (padded, inner)
    )
    assert with_padding < without / 2


@each_pass
def test_a_tap_that_reads_padding_everywhere_gives_zeros(engine: Engine, pass_: str) -> None:
    problem = dilated(input=(9, 9))  # the dilation exceeds the image: the middle tap alone reads it
    checked = CheckedKernel(engine, Kernel(problem, pass_))
    assert_each_algorithm_is_right(checked, 1.0, 0.0)
    if pass_ == "backward_filter":
        middle = checked.run([(2, "ALGO_1")])[:, :, 1, 1]
        assert np.count_nonzero(checked.run([(2, "ALGO_1")])) == np.count_nonzero(middle) > 0

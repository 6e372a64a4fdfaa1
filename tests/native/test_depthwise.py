"""Depthwise convolutions of implicit GEMM, which computes them without a matrix product."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from reference import PASSES, Bench, assert_each_algorithm_is_right

from mucudnn._native import Engine, Problem

passes = st.sampled_from(PASSES)
scales = st.sampled_from([1.0, -0.5, 2.0])
betas = st.sampled_from([0.0, 1.0, 0.5])


@st.composite
def depthwise_problems(draw: st.DrawFn, *, largest_size: int = 21) -> Problem:
    """Draw images and volumes of odd sizes, with more and fewer channels than a vector has lanes."""
    rank = draw(st.sampled_from((2, 2, 3)))
    most = largest_size if rank == 2 else 6
    input_ = tuple(draw(st.integers(1, most)) for _ in range(rank))
    kernel = tuple(draw(st.integers(1, 7 if rank == 2 else 3)) for _ in range(rank))
    dilation = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    extent = tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))
    least = tuple(max(0, (e - i + 1) // 2) for e, i in zip(extent, input_, strict=True))
    groups = draw(st.integers(4, 37))
    return Problem(
        mini_batch=draw(st.integers(1, 4)),
        in_channels=groups,
        out_channels=groups * draw(st.sampled_from((1, 1, 2, 3))),
        input=input_,
        kernel=kernel,
        stride=tuple(draw(st.integers(1, 4)) for _ in range(rank)),
        padding=tuple(draw(st.integers(p, p + 3)) for p in least),
        dilation=dilation,
        groups=groups,
        data_type=draw(st.sampled_from(("f32", "f32", "f16", "bf16"))),
        layout=draw(st.sampled_from(("nchw", "nhwc"))),
    )


@settings(max_examples=150)
@given(problem=depthwise_problems(), pass_=passes, alpha=scales, beta=betas)
def test_every_depthwise_convolution_agrees_with_the_definition(
    engine: Engine, problem: Problem, pass_: str, alpha: float, beta: float
) -> None:
    assert_each_algorithm_is_right(Bench(engine, problem, pass_), alpha, beta)

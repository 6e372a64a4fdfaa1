"""Convolutions whose columns are gathered: in NHWC by lines of taps, with stride 2 a vector at a time."""

import pytest
from guarded_tensors import assert_keeps_to_its_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import PASSES, CheckedKernel, assert_each_algorithm_is_right

from mucudnn._native import Engine, Problem
from mucudnn.problems.kernels import Kernel


@st.composite
def in_nhwc(draw: st.DrawFn) -> Problem:
    """Draw images and volumes whose lines of taps are shorter and longer than a vector."""
    depth = draw(st.sampled_from((0, 0, 3)))
    dims = 3 if depth else 2
    sizes = st.integers(1, 4)
    return Problem(
        mini_batch=draw(st.integers(1, 2)),
        in_channels=draw(st.sampled_from((1, 3, 7, 20, 66))),
        out_channels=draw(st.sampled_from((1, 4, 18, 64))),
        input=((depth,) if depth else ()) + (draw(st.integers(7, 9)), draw(st.integers(7, 12))),
        kernel=(*((draw(st.integers(1, 3)),) if depth else ()), draw(sizes), draw(sizes)),
        stride=tuple(draw(st.integers(1, 3)) for _ in range(dims)),
        padding=tuple(draw(st.integers(0, 3)) for _ in range(dims)),
        dilation=draw(st.sampled_from((1, 1, 2))) if not depth else 1,
        layout="nhwc",
        data_type=draw(st.sampled_from(("f32", "f32", "bf16", "f16", "f64"))),
    )


@st.composite
def strided(draw: st.DrawFn) -> Problem:
    """Draw images and volumes whose lines are shorter and longer than two vectors."""
    depth = draw(st.sampled_from(((), (3,))))
    return Problem(
        mini_batch=draw(st.integers(1, 3)),
        in_channels=draw(st.integers(1, 3)),
        out_channels=draw(st.integers(1, 4)),
        input=(*depth, draw(st.integers(3, 6)), draw(st.integers(3, 90))),
        kernel=(*depth, 3, draw(st.integers(1, 3))),
        stride=(*(1 for _ in depth), draw(st.integers(1, 2)), draw(st.integers(2, 3))),
        padding=draw(st.integers(0, 2)),
    )


each_kind = pytest.mark.parametrize("problems", [in_nhwc(), strided()], ids=["nhwc", "strided"])


@each_kind
@settings(max_examples=examples(150))
@given(data=st.data(), pass_=st.sampled_from(PASSES), beta=st.sampled_from([0.0, 0.5]))
def test_a_convolution_agrees_with_the_definition(
    engine: Engine, problems: st.SearchStrategy[Problem], data: st.DataObject, pass_: str, beta: float
) -> None:
    checked = CheckedKernel(engine, Kernel(data.draw(problems), pass_))
    assert_each_algorithm_is_right(checked, 1.0, beta)


@each_kind
@pytest.mark.parametrize("at_end", [True, False])
@settings(max_examples=examples(60))
@given(data=st.data(), pass_=st.sampled_from(PASSES))
def test_a_convolution_reads_and_writes_no_byte_outside_its_tensors(
    engine: Engine, problems: st.SearchStrategy[Problem], at_end: bool, data: st.DataObject, pass_: str
) -> None:
    assert_keeps_to_its_tensors(engine, data.draw(problems), pass_, beta=0.5, at_end=at_end)

"""The array functions compute the right result for any arguments, or raise a MucudnnError.

A call ends in the same way whether or not its kernel has been decided before. TEST_CASES is the
number of examples to try; each example makes four calls. TEST_SEED tries others.
"""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from odd_values import ARRAY, FACTOR, LAYOUT, OUT, PLAN, SHAPE, SIZE, WORKSPACE, Odd, sizes
from problem_arrays import TYPES, in_layout, tensors_of
from random_cases import cases, examples
from reference import EPSILON, OUTPUT, PASSES, convolve

import mucudnn
from mucudnn._native import Engine, Problem
from mucudnn.arrays import dispatch
from mucudnn.errors import MucudnnError

CASES = cases(examples(150))
FUNCTIONS = {
    "forward": mucudnn.convolution_forward,
    "backward_data": mucudnn.convolution_backward_data,
    "backward_filter": mucudnn.convolution_backward_filter,
}
READ = {"forward": ("x", "w"), "backward_data": ("y", "w"), "backward_filter": ("x", "y")}


@pytest.fixture(autouse=True, scope="module")
def undivided_kernels_only(one_cache: None) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUCUDNN_BATCH_POLICY", "undivided")
        patch.setattr(Engine, "bytes_beyond_caches", 0)  # small buffers do: times do not matter here
        yield


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    flat = draw(st.booleans())
    groups = draw(st.sampled_from([1, 2]))
    stride, padding, dilation = (draw(st.sampled_from(values)) for values in ([1, 2], [0, 1], [1, 2]))
    return Problem(
        mini_batch=2, in_channels=2, out_channels=4, groups=groups,
        input=(1, 6) if flat else (6, 5), kernel=(1, 3) if flat else (3, 2),
        stride=(1, stride) if flat else stride, padding=(0, padding) if flat else padding,
        dilation=(1, dilation) if flat else dilation,
        data_type=draw(st.sampled_from(list(TYPES))), layout=draw(st.sampled_from(["nchw", "nhwc"])),
    )  # fmt: skip


def dims_of(problem: Problem) -> int:
    return 1 if problem.kernel[0] == 1 else 2


def as_argument(problem: Problem, tensor: np.ndarray) -> np.ndarray:
    """Return the tensor with the layout and the number of axes that the array functions take."""
    return in_layout(tensor[:, :, 0] if dims_of(problem) == 1 else tensor, problem.layout)


def plain_arguments(problem: Problem, pass_: str, alpha: float, beta: float) -> dict[str, Any]:
    tensors = {name: as_argument(problem, tensor) for name, tensor in tensors_of(problem).items()}
    return {
        **{name: tensors[name] for name in READ[pass_]},
        **({} if pass_ == "forward" else {"shape": tensors[OUTPUT[pass_]].shape}),
        "stride": problem.stride[-1], "padding": problem.padding[-1], "dilation": problem.dilation[-1],
        "groups": problem.groups, "layout": problem.layout, "alpha": alpha, "beta": beta,
        "workspace": None, "plan": None, "out": tensors[OUTPUT[pass_]],
    }  # fmt: skip


def odd_values(problem: Problem, name: str) -> tuple[Odd, ...]:
    if name in ("stride", "padding", "dilation"):
        return sizes(dims_of(problem))
    return {
        "x": ARRAY, "w": ARRAY, "y": ARRAY, "out": OUT, "shape": SHAPE, "groups": SIZE, "layout": LAYOUT,
        "alpha": FACTOR, "beta": FACTOR, "workspace": WORKSPACE, "plan": PLAN,
    }[name]  # fmt: skip


@st.composite
def calls(draw: st.DrawFn) -> tuple[Problem, str, float, float, dict[str, Odd]]:
    problem, pass_ = draw(problems()), draw(st.sampled_from(PASSES))
    alpha, beta = draw(st.sampled_from([1.0, 2.0, -0.5])), draw(st.sampled_from([0.0, 0.5]))
    names = draw(
        st.lists(st.sampled_from(list(plain_arguments(problem, pass_, alpha, beta))), max_size=3, unique=True)
    )
    return (
        problem,
        pass_,
        alpha,
        beta,
        {name: draw(st.sampled_from(odd_values(problem, name))) for name in names},
    )


def outcome(pass_: str, arguments: dict[str, Any]) -> tuple[str, str] | np.ndarray:
    """Return the result of a call, or the type and text of the MucudnnError that it raises."""
    options = dict(arguments)
    positional = [options.pop(name) for name in (*READ[pass_], "shape") if name in options]
    try:
        result = FUNCTIONS[pass_](*positional, **options)
    except MucudnnError as error:
        return type(error).__name__, re.sub("0x[0-9a-f]+", "0x", str(error))
    assert result is arguments["out"]
    return np.array(getattr(result, "values", result))


SMALL = Problem(
    mini_batch=2, in_channels=2, out_channels=4, input=(6, 5), kernel=(3, 2), data_type="f32", layout="nchw"
)


@pytest.mark.parametrize("name", plain_arguments(SMALL, "backward_data", 2.0, 0.5))
def test_each_odd_argument_is_right_or_refused_whether_or_not_its_call_is_decided(name: str) -> None:
    for odd in odd_values(SMALL, name):
        check_call(SMALL, "backward_data", 2.0, 0.5, {name: odd})


@seed(CASES.start)
@settings(max_examples=len(CASES), database=None)
@given(calls())
def test_odd_arguments_together_are_right_or_refused_whether_or_not_their_call_is_decided(
    call: tuple[Problem, str, float, float, dict[str, Odd]],
) -> None:
    check_call(*call)


def check_call(problem: Problem, pass_: str, alpha: float, beta: float, odd: dict[str, Odd]) -> None:

    def arguments(values: dict[str, Odd]) -> dict[str, Any]:
        """Return new arguments: some odd values can be used only once, and a call overwrites `out`."""
        plain = plain_arguments(problem, pass_, alpha, beta)
        return plain | {name: value.make(plain[name]) for name, value in values.items()}

    meant = {name: value for name, value in odd.items() if value.is_taken}
    # The memo of decisions has different keys for 1 and (1, 1), and an odd value may equal either. So both
    # forms are decided before the odd call is made again.
    tuples = {name: (arguments({})[name],) * dims_of(problem) for name in ("stride", "padding", "dilation")}
    dispatch._prepared.clear()
    cold = outcome(pass_, arguments(odd))
    results = [
        outcome(pass_, arguments(meant)),
        outcome(pass_, arguments(meant) | tuples | {"workspace": "7B"}),
    ]
    warm = outcome(pass_, arguments(odd))
    if len(meant) == len(odd):
        results += [cold, warm]
    else:
        assert isinstance(cold, tuple), "the function took a value that it has to refuse"
        assert warm == cold
        assert "\n" not in cold[1]
        assert len(cold[1]) < 400
    tensors = {name: tensor.astype(np.float64) for name, tensor in tensors_of(problem).items()}
    before, convolved = tensors[OUTPUT[pass_]], convolve(problem, pass_, **tensors)
    expected = as_argument(problem, alpha * convolved + beta * before)
    scale = np.linalg.norm(abs(alpha) * convolved + beta * before)
    for result in results:
        assert isinstance(result, np.ndarray), result
        assert np.linalg.norm(result.astype(np.float64) - expected) <= 4 * EPSILON[problem.data_type] * scale

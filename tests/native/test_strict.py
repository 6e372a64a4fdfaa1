"""Under strict arithmetic each result is a sum over its own window, in each algorithm that may run."""

import numpy as np
import pytest
from drawn_problems import divisions, problems
from hypothesis import given
from hypothesis import strategies as st
from reference import ALL_TYPES, OUTPUT, Array, CheckedKernel, convolve

from mucudnn._native import Engine, EngineError, Problem, most_slices
from mucudnn.problems.kernels import Kernel

PLANTED = {"forward": "x", "backward_data": "y", "backward_filter": "x"}
WINOGRAD = Problem(
    mini_batch=2, in_channels=4, out_channels=4, input=(8, 8), kernel=(3, 3), padding=(1, 1), math="strict"
)


@st.composite
def strict_kernels(draw: st.DrawFn) -> Kernel:
    """Draw a kernel, often of a kind that Winograd and FFT would run."""
    square = st.sampled_from([(3, 3), (5, 5)]).flatmap(lambda size: problems(kernel=size, plain=True))
    problem = draw(st.one_of(problems(data_types=ALL_TYPES), square)).replace(math="strict")
    return Kernel(problem, draw(st.sampled_from(sorted(PLANTED))))


Parts = list[tuple[int, str]]


def choices(checked: CheckedKernel, data: st.DataObject) -> list[Parts]:
    """Return every algorithm, undivided, and one division."""
    mini_batch = checked.problem.mini_batch
    sizes = data.draw(divisions(mini_batch, most_slices(checked.kernel)))
    division = [(size, data.draw(st.sampled_from(checked.runnable(size)))) for size in sizes]
    return [*([(mini_batch, name)] for name in checked.runnable(mini_batch)), division]


def write(checked: CheckedKernel, name: str, values: Array) -> None:
    checked.values[name] = values
    last = np.moveaxis(values, 1, -1) if checked.problem.layout == "nhwc" else values
    checked.memory[name].write(checked.problem.data_type, np.ascontiguousarray(last).ravel())


@given(kernel=strict_kernels(), value=st.sampled_from([np.nan, np.inf, -np.inf]), data=st.data())
def test_a_value_that_is_not_finite_reaches_the_results_whose_windows_hold_it(
    engine: Engine, kernel: Kernel, value: float, data: st.DataObject
) -> None:
    checked = CheckedKernel(engine, kernel)
    name = PLANTED[kernel.pass_]
    place = tuple(data.draw(st.integers(0, size - 1)) for size in checked.shapes[name])
    planted = checked.values[name].copy()
    planted[place] = value
    write(checked, name, planted)
    ones = {other: np.ones(checked.shapes[other]) for other in "xwy"}
    held = convolve(checked.problem, kernel.pass_, *({**ones, name: ~np.isfinite(planted)}[t] for t in "xwy"))
    for parts in choices(checked, data):
        result = checked.run(parts)
        np.testing.assert_array_equal(~np.isfinite(result), held > 0)


@given(kernel=strict_kernels(), data=st.data())
def test_a_large_value_changes_no_result_whose_window_lacks_it(
    engine: Engine, kernel: Kernel, data: st.DataObject
) -> None:
    checked = CheckedKernel(engine, kernel)
    every = choices(checked, data)
    before = [checked.run(parts) for parts in every]
    name = PLANTED[kernel.pass_]
    place = tuple(data.draw(st.integers(0, size - 1)) for size in checked.shapes[name])
    planted, marked = checked.values[name].copy(), np.zeros(checked.shapes[name])
    planted[place], marked[place] = (1e20 if kernel.problem.data_type != "f16" else 6e4), 1
    write(checked, name, planted)
    ones = {other: np.ones(checked.shapes[other]) for other in "xwy"}
    held = convolve(checked.problem, kernel.pass_, *({**ones, name: marked}[t] for t in "xwy"))
    for old, parts in zip(before, every, strict=True):
        np.testing.assert_array_equal(checked.run(parts)[held == 0], old[held == 0])


@given(kernel=strict_kernels(), data=st.data())
def test_zeros_stay_zero_and_sums_of_positive_values_stay_positive(
    engine: Engine, kernel: Kernel, data: st.DataObject
) -> None:
    checked = CheckedKernel(engine, kernel)
    random = np.random.default_rng(3)
    for name in {*"xwy"} - {OUTPUT[kernel.pass_]}:
        values = np.abs(checked.values[name])
        values[random.random(values.shape) < 0.7] = data.draw(st.sampled_from([0.0, -0.0]))
        write(checked, name, values)
    exact = checked.exact()
    for parts in choices(checked, data):
        result = checked.run(parts)
        assert (result >= 0).all()
        assert (result[exact == 0] == 0).all()


@pytest.mark.parametrize("pass_", sorted(PLANTED))
def test_neither_fft_nor_winograd_may_run(engine: Engine, pass_: str) -> None:
    kernel = Kernel(WINOGRAD, pass_)
    refused = {c.algorithm for c in engine.enumerate(kernel) if c.status == "MUCUDNN_STATUS_NOT_ALLOWED"}
    assert {"WINOGRAD_NONFUSED", "FFT_TILING"} <= refused
    for name in refused:
        with pytest.raises(EngineError, match="not allowed by"):
            engine.prepare(kernel, ((2, name),))
        with pytest.raises(EngineError, match="not allowed by"):
            engine.prepare(kernel, ((1, f"{name}.tile=3"),) * 2)

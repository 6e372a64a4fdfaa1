"""Kept filters: in the form that an algorithm computes with, made once, and without effect on the bits."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from drawn_problems import TRANSFORMS, divisions, transformed_problems
from hypothesis import given
from hypothesis import strategies as st
from problem_arrays import random_values

from mucudnn._native import Division, Engine, KeptFilter, Problem, host_library
from mucudnn.costs.records import SUCCESS
from mucudnn.problems.kernels import Kernel

ENGINES = {threads: Engine(host_library(), threads=threads) for threads in (1, 2, 3)}
IMAGE = Problem(mini_batch=2, in_channels=40, out_channels=70, input=(13, 9), kernel=(3, 3), padding=1)
# The spectra of its filter are larger than those of its images, so that threads share its channels.
DEEP = Problem(mini_batch=1, in_channels=96, out_channels=128, input=(7, 7), kernel=(3, 3), padding=1)


class Run:
    """The tensors of a kernel, and their results."""

    def __init__(self, kernel: Kernel) -> None:
        problem = kernel.problem
        counts = problem.x_elements, problem.w_elements, problem.y_elements
        self.x, self.w, self.y = (
            random_values(problem.data_type, count, seed) for seed, count in enumerate(counts)
        )
        self.is_forward = kernel.pass_ == "forward"

    @property
    def filter(self) -> int:
        """The address of the filter."""
        return self.w.ctypes.data

    def bits(self, division: Division, kept: KeptFilter | None, beta: float = 0.0) -> npt.NDArray[Any]:
        """Return the result of a run, which may add to random values."""
        x, y = self.x.copy(), self.y.copy()
        workspace = ENGINES[1].allocate(division.workspace) if division.workspace else None
        division.run(x.ctypes.data, self.filter, y.ctypes.data, workspace, 0.5, beta, 0, kept)
        return (y if self.is_forward else x).view(np.uint8)


def transforms(kernel: Kernel) -> list[str]:
    listed = ENGINES[1].enumerate(kernel)
    return [c.algorithm for c in listed if c.algorithm in TRANSFORMS and c.status == SUCCESS]


@given(st.data(), st.sampled_from(["forward", "backward_data"]), st.sampled_from([1, 2, 3]))
def test_a_kept_filter_changes_no_bit(data: st.DataObject, pass_: str, threads: int) -> None:
    problem = data.draw(transformed_problems())
    kernel = Kernel(problem, pass_)
    algorithms = transforms(kernel)
    if not algorithms:
        return
    slices = [
        (size, data.draw(st.sampled_from(algorithms))) for size in data.draw(divisions(problem.mini_batch))
    ]
    division, run = ENGINES[threads].prepare(kernel, slices), Run(kernel)
    kept = division.keep_filter(run.filter)
    assert kept.size == division.kept_filter_size + run.w.nbytes > run.w.nbytes
    beta = data.draw(st.sampled_from([0.0, 0.5]))
    np.testing.assert_array_equal(run.bits(division, kept, beta), run.bits(division, None, beta))
    np.testing.assert_array_equal(run.bits(division, kept, beta), run.bits(division, None, beta))


@pytest.mark.parametrize("pass_", ["forward", "backward_data"])
@pytest.mark.parametrize("algorithm", TRANSFORMS)
def test_tiles_of_equal_length_share_a_kept_filter(algorithm: str, pass_: str) -> None:
    kernel = Kernel(IMAGE, pass_)
    whole = ENGINES[1].prepare(kernel, [(2, algorithm)])
    for steps, lengths in ((4, 2), (7, 2)):  # the last tile is shorter
        division, run = ENGINES[1].prepare(kernel, [(1, f"{algorithm}.tile={steps}")] * 2), Run(kernel)
        kept = division.keep_filter(run.filter)
        size = kept.size - run.w.nbytes
        assert whole.kept_filter_size <= size <= lengths * (whole.kept_filter_size + 2**12)
        np.testing.assert_array_equal(run.bits(division, kept), run.bits(division, None))
        run.w[:] = 0
        assert run.bits(division, kept).any()


@pytest.mark.parametrize("problem", [IMAGE, DEEP], ids=["image", "deep"])
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("algorithm", TRANSFORMS)
def test_the_kept_filter_is_read_and_the_tensor_is_not(
    problem: Problem, threads: int, algorithm: str
) -> None:
    kernel = Kernel(problem, "forward")
    division, run = ENGINES[threads].prepare(kernel, [(problem.mini_batch, algorithm)]), Run(kernel)
    kept = division.keep_filter(run.filter)
    expected = run.bits(division, None)
    run.w[:] = np.nan
    np.testing.assert_array_equal(run.bits(division, kept), expected)


@pytest.mark.parametrize("algorithm", TRANSFORMS)
def test_a_filter_kept_for_other_threads_is_not_misread(algorithm: str) -> None:
    kernel = Kernel(DEEP, "forward")
    slices, run = [(1, algorithm)], Run(kernel)
    kept = ENGINES[2].prepare(kernel, slices).keep_filter(run.filter)
    division = ENGINES[3].prepare(kernel, slices)
    np.testing.assert_array_equal(run.bits(division, kept), run.bits(division, None))


@given(st.integers(0, IMAGE.w_elements - 1))
def test_a_change_of_any_value_is_noticed(place: int) -> None:
    kernel = Kernel(IMAGE, "forward")
    run = Run(kernel)
    kept = ENGINES[1].prepare(kernel, [(2, "WINOGRAD_NONFUSED")]).keep_filter(run.filter)
    assert kept.matches(run.filter)
    run.w[place] *= 2
    assert not kept.matches(run.filter)
    run.w[place] /= 2
    assert kept.matches(run.filter)


@pytest.mark.parametrize("algorithm", ["IMPLICIT_GEMM", "GEMM"])
def test_products_read_the_filter_as_it_is(algorithm: str) -> None:
    kernel = Kernel(IMAGE, "forward")
    division, run = ENGINES[1].prepare(kernel, [(2, algorithm)]), Run(kernel)
    kept = division.keep_filter(run.filter)
    assert division.kept_filter_size == 0
    assert kept.size == run.w.nbytes
    np.testing.assert_array_equal(run.bits(division, kept), run.bits(division, None))


def test_a_mixed_division_keeps_filters_for_its_transforms() -> None:
    kernel = Kernel(IMAGE, "forward")
    division = ENGINES[2].prepare(kernel, [(1, "IMPLICIT_GEMM"), (1, "WINOGRAD_NONFUSED")])
    run = Run(kernel)
    kept = division.keep_filter(run.filter)
    np.testing.assert_array_equal(run.bits(division, kept), run.bits(division, None))


def test_a_gradient_of_the_filter_keeps_nothing() -> None:
    division = ENGINES[1].prepare(Kernel(IMAGE, "backward_filter"), [(2, "WINOGRAD_NONFUSED")])
    assert division.kept_filter_size == 0


def test_an_engine_for_constant_filters_is_another_library() -> None:
    constant = Engine(host_library(), threads=1, constant_filters=True)
    assert constant.library == f"{ENGINES[1].library}, constant filters"
    kernel = Kernel(IMAGE, "forward")
    x, w, y = (
        constant.allocate(4 * count) for count in (IMAGE.x_elements, IMAGE.w_elements, IMAGE.y_elements)
    )
    workspace = constant.allocate(2**24)
    timing = constant.measure(kernel, "WINOGRAD_NONFUSED", x, w, y, workspace, repeats=1, budget_ms=1.0)
    assert timing.time_ms > 0

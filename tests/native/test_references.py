"""The fp64 reference of a large kernel is a piece of the result, equal to that piece of the whole."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from drawn_problems import problems
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import IMPLICIT_GEMM, PASSES, Array, CheckedKernel

from mucudnn._native import Engine, Problem, most_slices, parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener
from mucudnn.measuring import bench as measuring
from mucudnn.measuring import reference
from mucudnn.measuring.buffers import Tensors, extent
from mucudnn.measuring.compare import compare, comparison_memory
from mucudnn.measuring.reference import Piece, Reference, piece_of
from mucudnn.measuring.runners import Exhaustive
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

ROOM = 2**40
ALL_TYPES = ("f32", "f64", "f16", "bf16")


def roomy_bench(engine: Engine) -> measuring.Bench:
    """Return a bench whose memory holds every reference of these tests."""
    bench = measuring.Bench(engine, Cache.in_memory(Path("none")), Listener(), Exhaustive())
    bench.memory_cap = ROOM
    return bench


def values_of_piece(piece: Piece, pass_: str, values: Array) -> Array:
    """Return the values of a whole result that belong to a piece."""
    return values[list(piece.out_channels if pass_ == "backward_filter" else piece.samples)].ravel()


def assert_piece_equals_whole(engine: Engine, kernel: Kernel, piece: Piece) -> None:
    checked = CheckedKernel(engine, kernel)
    x, w, y, *operands = (checked.memory[name] for name in checked.shapes)
    reference = Reference(engine, kernel, Tensors(x, w, y, tuple(operands)), piece)
    expected, exact = reference.expected(), values_of_piece(piece, kernel.pass_, checked.exact())
    assert expected is not None
    assert np.linalg.norm(expected - exact) <= 1e-12 * checked.magnitude()
    batch = kernel.mini_batch
    result = checked.run([(batch, checked.runnable(batch)[0])])
    assert np.array_equal(reference.actual(), values_of_piece(piece, kernel.pass_, result))


@settings(max_examples=examples(150))
@given(
    problem=problems(data_types=ALL_TYPES),
    pass_=st.sampled_from(PASSES),
    most=st.integers(0, 2**16),
    few=st.integers(1, 4),
)
def test_a_piece_of_the_fp64_result_is_that_of_the_whole(
    engine: Engine, problem: Problem, pass_: str, most: int, few: int
) -> None:
    kernel = Kernel(problem, pass_)
    with patch.multiple(reference, MOST=most, FEW_CHANNELS=few):
        piece = piece_of(kernel, ROOM)
    assert piece is not None
    assert piece.memory <= most or piece.problem.mini_batch == 1
    assert len(set(piece.samples)) == len(piece.samples)
    if pass_ == "backward_filter":
        assert piece.samples == tuple(range(problem.mini_batch))
    elif len(piece.samples) > 1:
        assert (piece.samples[0], piece.samples[-1]) == (0, problem.mini_batch - 1)
    assert_piece_equals_whole(engine, kernel, piece)


@pytest.mark.parametrize("epilogue", ["+bias+relu", "+add+bias+relu", "+add0+bias+relu", "+relu+add"])
@pytest.mark.parametrize("most", [0, 2**13, ROOM])
def test_it_is_that_of_a_fused_kernel(engine: Engine, epilogue: str, most: int) -> None:
    kernel = Kernel(parse_descriptor(f"mb5_ic3ih6_oc4_kh3_ph1{epilogue}")[0], "forward")
    with patch.object(reference, "MOST", most):
        piece = piece_of(kernel, ROOM)
    assert piece is not None
    assert_piece_equals_whole(engine, kernel, piece)


def test_a_small_kernel_is_taken_whole_and_a_lack_of_room_gives_none() -> None:
    problem = parse_descriptor("mb5_ic3ih6_oc9_kh3_ph1")[0]
    for pass_ in PASSES:
        piece = piece_of(Kernel(problem, pass_), ROOM)
        assert piece is not None
        assert (piece.samples, piece.problem.mini_batch) == ((0, 1, 2, 3, 4), 5)
        assert piece.memory == 2 * extent(problem.replace(data_type="f64")).total
        assert piece_of(Kernel(problem, pass_), 1000) is None


@pytest.mark.parametrize("data_type", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("pass_", PASSES)
def test_the_error_of_a_piece_is_about_that_of_the_whole(engine: Engine, pass_: str, data_type: str) -> None:
    problem = parse_descriptor("mb16_ic16ih12_oc32_kh3_ph1", data_type=data_type)[0]
    kernel, name = Kernel(problem, pass_, ""), IMPLICIT_GEMM[pass_]
    workspace = max(c.workspace for c in engine.enumerate(kernel) if c.algorithm == name)
    undivided = Configuration((MicroConfiguration(16, name, 1.0, workspace),))
    slices = min(2, most_slices(kernel))
    divided = Configuration((MicroConfiguration(16 // slices, name, 0.5, workspace),) * slices)
    bench = roomy_bench(engine)
    whole, _ = compare(bench, kernel, undivided, divided)
    with patch.object(reference, "MOST", comparison_memory(kernel, ROOM) // 8):
        piece, _ = compare(bench, kernel, undivided, divided)
    assert piece.error is not None
    # A matrix product may sum some output channels in another order than others, with a smaller error.
    assert piece.error == pytest.approx(whole.error, rel=0.4)
    assert piece.undivided_error == pytest.approx(whole.undivided_error, rel=0.4)


def test_values_that_are_not_finite_have_no_error(engine: Engine) -> None:
    problem = parse_descriptor("f16:mb16_ic8ih8_oc8_kh3_ph1")[0]
    checked = CheckedKernel(engine, Kernel(problem, "forward"))
    checked.memory["x"].fill("f16", problem.x_elements, 60000.0)
    x, w, y = (checked.memory[name] for name in "xwy")
    whole = Configuration((MicroConfiguration(16, "IMPLICIT_GEMM", 1.0, 2**24),))
    with patch.object(Tensors, "random", lambda *_: Tensors(x, w, y)):
        assert compare(roomy_bench(engine), Kernel(problem, "forward"), whole, whole)[0].error is None

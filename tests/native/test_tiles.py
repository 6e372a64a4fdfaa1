"""Tiles along depth or height, with halo, are exact for any kernel, stride, dilation and padding."""

import numpy as np
import pytest
from drawn_problems import divisions, problems
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import PASSES, CheckedKernel

from mucudnn._native import Engine, EngineError, Problem, most_slices, tile_copies, tile_kernel, tile_steps
from mucudnn.problems.kernels import Kernel

ALL_TYPES = ("f32", "f64", "f16", "bf16")
SMALL = Kernel(
    Problem(mini_batch=1, in_channels=2, out_channels=2, input=(8, 8), kernel=(3, 3), padding=1), "forward"
)
passes = st.sampled_from(PASSES)


@settings(max_examples=250)
@given(
    data=st.data(),
    problem=st.one_of(
        problems(data_types=ALL_TYPES, most_samples=3), problems(kernel=(3, 3), plain=True, most_samples=2)
    ),
    pass_=passes,
    alpha=st.sampled_from([1.0, -0.5, 2.0]),
    beta=st.sampled_from([0.0, 1.0, 0.5]),
)
def test_tiles_are_as_exact_as_their_algorithms(
    engine: Engine, data: st.DataObject, problem: Problem, pass_: str, alpha: float, beta: float
) -> None:
    kernel = Kernel(problem, pass_)
    most = most_slices(kernel)
    assume(problem.mini_batch <= most)
    checked = CheckedKernel(engine, kernel)
    parts = [
        (steps, data.draw(st.sampled_from(runnable(engine, kernel, steps))))
        for steps in data.draw(divisions(tile_steps(kernel), most))
    ]
    exact = checked.exact(alpha=alpha, beta=beta)
    tiled = checked.run_tiles(parts, alpha=alpha, beta=beta, over=None if beta else np.nan)
    # Winograd's own tiles begin elsewhere than in the undivided run, whose error is therefore no bound.
    worst = max(checked.tolerance(algorithm, alpha=alpha, beta=beta) for _, algorithm in parts)
    assert np.linalg.norm(tiled - exact) <= 2 * worst


def runnable(engine: Engine, kernel: Kernel, steps: int) -> list[str]:
    """Return the names of the algorithms that run a tile."""
    found = engine.enumerate(tile_kernel(kernel, steps))
    return [c.algorithm for c in found if c.status == "CUDNN_STATUS_SUCCESS"]


@given(problem=problems(), pass_=passes)
def test_a_tile_is_a_problem_of_one_sample_without_padding_along_the_axis(
    problem: Problem, pass_: str
) -> None:
    kernel = Kernel(problem, pass_)
    steps = tile_steps(kernel)
    tile = tile_kernel(kernel, steps).problem
    assert (tile.mini_batch, tile.padding[0], tile.padding[1:]) == (1, 0, problem.padding[1:])
    if pass_ == "backward_data":
        assert steps == -(-problem.input[0] // problem.stride[0])
        assert tile.input[0] >= problem.input[0]
    else:
        assert tile.output[0] == steps == problem.output[0]


def test_bf16_filter_gradients_of_many_tiles_are_summed_in_fp32(engine: Engine) -> None:
    problem = Problem(
        mini_batch=1, in_channels=2, out_channels=2, input=(64, 8), kernel=(3, 3), padding=1, data_type="bf16"
    )
    checked = CheckedKernel(engine, Kernel(problem, "backward_filter"))
    exact = checked.exact()
    one, many = (checked.run_tiles([(64 // n, "ALGO_1")] * n) for n in (1, 64))
    assert np.linalg.norm(many - exact) <= 2 * np.linalg.norm(one - exact)


def test_tiles_that_do_not_add_up_are_refused(engine: Engine) -> None:
    checked = CheckedKernel(engine, SMALL)
    scratch = engine.allocate(4096)
    for parts in ([(4, "IMPLICIT_GEMM")], [(9, "IMPLICIT_GEMM")], [(8, "IMPLICIT_GEMM"), (0, "GEMM")], []):
        with pytest.raises(ValueError, match="the tiles do not add up to the 8 steps of forward"):
            engine.execute(SMALL, parts, *checked.memory.values(), scratch, tiles=True)


def test_tiles_say_how_much_workspace_they_lack(engine: Engine) -> None:
    checked = CheckedKernel(engine, SMALL)
    needed = tile_copies(SMALL, 4)
    assert needed == 512 + 256  # 2 channels of 6 rows of x and of 4 rows of y, each aligned to 256 bytes
    parts, little = [(4, "IMPLICIT_GEMM")] * 2, engine.allocate(needed - 1)
    with pytest.raises(EngineError, match=f"need a workspace of {needed} bytes, {needed - 1} are given"):
        engine.execute(SMALL, parts, *checked.memory.values(), little, tiles=True)

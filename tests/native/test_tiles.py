"""Algorithms in tiles along depth or height, with halo, are exact for any kernel, stride and padding."""

import contextlib
import mmap

import numpy as np
import pytest
from drawn_problems import problems
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import PASSES, CheckedKernel

from mucudnn._native import (
    Engine,
    EngineError,
    Problem,
    most_slices,
    parse_descriptor,
    tile_kernel,
    tile_steps,
)
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import tile_of

ALL_TYPES = ("f32", "f64", "f16", "bf16")
SMALL = Kernel(
    Problem(mini_batch=1, in_channels=2, out_channels=2, input=(8, 8), kernel=(3, 3), padding=1), "forward"
)
passes = st.sampled_from(PASSES)


@settings(max_examples=examples(250))
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
    assume(tile_steps(kernel) > 1 and most_slices(kernel) > 2**62)
    checked = CheckedKernel(engine, kernel)
    steps = data.draw(st.integers(1, tile_steps(kernel) - 1))
    algorithm = data.draw(st.sampled_from(runnable(engine, kernel, steps)))
    size = data.draw(st.sampled_from([1, problem.mini_batch]))
    parts = [(size, f"{algorithm}.tile={steps}")] * (problem.mini_batch // size)
    exact = checked.exact(alpha=alpha, beta=beta)
    tiled = checked.run(parts, alpha=alpha, beta=beta, over=None if beta else np.nan)
    # Winograd's own tiles begin elsewhere than in the undivided run, whose error is therefore no bound.
    assert np.linalg.norm(tiled - exact) <= 2 * checked.tolerance(algorithm, alpha=alpha, beta=beta)


def runnable(engine: Engine, kernel: Kernel, steps: int) -> list[str]:
    """Return the names of the algorithms that run all tiles of a kernel."""
    total = tile_steps(kernel)
    return [
        name
        for name in succeeding(engine, tile_kernel(kernel, steps))
        if total % steps == 0 or name in succeeding(engine, tile_kernel(kernel, total % steps))
    ]


def succeeding(engine: Engine, kernel: Kernel) -> list[str]:
    return [c.algorithm for c in engine.enumerate(kernel) if c.status == "CUDNN_STATUS_SUCCESS"]


@given(problem=problems(), pass_=passes)
def test_a_tile_is_a_problem_of_one_sample(problem: Problem, pass_: str) -> None:
    kernel = Kernel(problem, pass_)
    steps = tile_steps(kernel)
    tile, axis = tile_kernel(kernel, steps).problem, divided_axis(problem)
    others = [other for other in range(len(problem.input)) if other != axis]
    assert tile.mini_batch == 1
    assert all(tile.padding[other] == problem.padding[other] for other in others)
    if pass_ == "backward_data":
        assert steps == -(-problem.input[axis] // problem.stride[axis])
        assert tile.input[axis] >= problem.input[axis]
    else:
        assert (tile.padding[axis], tile.output[axis]) == (0, steps)
        assert steps == problem.output[axis]


def divided_axis(problem: Problem) -> int:
    """Return the axis that tiles divide: the height of a volume with few but large images."""
    return 1 if len(problem.output) == 3 and problem.output[1] >= 4 * problem.output[0] else 0


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize(("steps", "beta"), [(1, 0.5), (4, 0.0), (7, 1.0)])
@pytest.mark.parametrize(
    "text",
    ["ic2id3ih16iw5_oc3_kd2kh3kw3_pd1ph1pw1", "mb2_g2ic4id2ih19iw4_oc2_kd1kh3kw2_sd1sh2sw1_pd0ph2pw1"],
)
def test_a_volume_of_few_images_is_divided_in_height(
    text: str, steps: int, beta: float, layout: str, pass_: str, engine: Engine
) -> None:
    kernel = Kernel(parse_descriptor(f"f32:{layout}:{text}")[0], pass_)
    assert tile_steps(kernel) > kernel.problem.output[0]
    checked = CheckedKernel(engine, kernel)
    exact = checked.exact(beta=beta)
    algorithms = runnable(engine, kernel, steps)
    assert algorithms
    for algorithm in algorithms:
        parts = [(1, f"{algorithm}.tile={steps}")] * kernel.mini_batch
        tiled = checked.run(parts, beta=beta, over=None if beta else np.nan)
        assert np.linalg.norm(tiled - exact) <= 2 * checked.tolerance(algorithm, beta=beta)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_inner_tiles_read_and_write_the_tensors_where_they_are(
    layout: str, pass_: str, engine: Engine
) -> None:
    """Run an algorithm without a workspace: what its tiles need are the copies of the border's input."""
    problem = parse_descriptor(f"f32:{layout}:ic2ih64iw8_oc2_kh3_ph1")[0]
    algorithm = "IMPLICIT_GEMM" if pass_ == "forward" else "ALGO_1"
    rows = 18  # 16 steps with a halo of one row on both sides
    needed = engine.prepare(Kernel(problem, pass_), [(1, f"{algorithm}.tile=16")]).workspace
    assert needed == -(-rows * 8 * 2 * 4 // 256) * 256


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ("8", "a sample of 8 steps is not divided into tiles of 8"),
        ("0", "has no algorithm 'IMPLICIT_GEMM.tile=0'"),
        ("-1", "has no algorithm"),
        ("4x", "has no algorithm"),
        ("99999999999999999999", "has no algorithm"),
    ],
)
def test_a_number_of_steps_that_divides_nothing_is_refused(engine: Engine, steps: str, reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        engine.prepare(SMALL, [(1, f"IMPLICIT_GEMM.tile={steps}")])


def test_a_plan_cannot_ask_for_any_number_of_tiles(engine: Engine) -> None:
    kernel = Kernel(parse_descriptor("ic1ih2000000iw1_oc1_kh1")[0], "forward")
    with pytest.raises(EngineError, match="more than 65536"):
        engine.prepare(kernel, [(1, "IMPLICIT_GEMM.tile=1")])


def test_tiles_say_how_much_workspace_they_lack(engine: Engine) -> None:
    checked = CheckedKernel(engine, SMALL)
    division = engine.prepare(SMALL, [(1, "IMPLICIT_GEMM.tile=4")])
    needed = division.workspace
    little = engine.allocate(needed - 1)
    with pytest.raises(EngineError, match=f"needs a workspace of {needed} bytes, {needed - 1} are given"):
        division.execute(*checked.memory.values(), little)


@pytest.mark.parametrize("pass_", PASSES)
def test_the_listed_tiles_are_the_longest_that_fit_some_workspaces(engine: Engine, pass_: str) -> None:
    kernel = Kernel(parse_descriptor("ic16ih96_oc16_kh3_ph1")[0], pass_)
    listed = {name: workspace(engine, kernel, name) for name in succeeding(engine, kernel)}
    tiled = {name: tiles for name in listed if (tiles := tile_of(name))}
    assert {"WINOGRAD_NONFUSED"} < {whole for whole, _ in tiled.values()}
    for name, (whole, steps) in tiled.items():
        assert listed[name] < listed[whole]
        limit = 2**19
        while limit < listed[name]:
            limit *= 2
        longer = f"{whole}.tile={steps + 1}" if steps + 1 < tile_steps(kernel) else whole
        assert workspace(engine, kernel, longer) > limit


def workspace(engine: Engine, kernel: Kernel, algorithm: str) -> int:
    return engine.prepare(kernel, [(1, algorithm)]).workspace


def test_only_kernels_of_one_sample_list_tiles(engine: Engine) -> None:
    problem = parse_descriptor("ic16ih96_oc16_kh3_ph1")[0]
    for size in (1, 2):
        names = succeeding(engine, Kernel(problem.replace(mini_batch=size), "forward"))
        assert any(map(tile_of, names)) == (size == 1)


# --- samples of more than 2^31 elements ---


@pytest.mark.parametrize("pass_", PASSES)
def test_tiles_are_listed_for_a_sample_that_no_algorithm_takes_whole(engine: Engine, pass_: str) -> None:
    kernel = Kernel(parse_descriptor("ic2ih50000iw50000_oc2_kh3_ph1")[0], pass_)
    names = succeeding(engine, kernel)
    assert names
    for name in names:
        tiled = tile_of(name)
        assert tiled is not None
        assert tiled[1] * 50000 * 2 < 2**31


@pytest.mark.parametrize(
    ("text", "images", "steps"),
    [
        ("ic1ih{side}_oc1_kh2_sh{stride}", 1, 32),
        ("ic1id2ih{side}iw{side}_oc1_kd2kh2kw2_sd1sh{stride}sw{stride}", 2, 1),
    ],
    ids=["image", "volume"],
)
def test_a_tile_finds_rows_beyond_32_bits_where_they_are(
    text: str, images: int, steps: int, engine: Engine
) -> None:
    """Compute few results of sparse images of 9.7 GB, whose last rows hold the only values."""
    side, stride = 49152, 512
    problem = parse_descriptor(text.format(side=side, stride=stride))[0]
    assert tile_steps(Kernel(problem, "forward")) == side // stride
    no_reserve = 0x4000  # Python 3.13 names it mmap.MAP_NORESERVE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    with contextlib.closing(mmap.mmap(-1, images * side * side * 4, flags=flags)) as pages:
        image = np.frombuffer(pages, np.float32).reshape(images, side, side)
        image[-1, -stride] = np.arange(side)
        w, y = engine.allocate(32), engine.allocate((side // stride) ** 2 * 4)
        w.write("f32", np.ones(8))
        x = engine.borrow(image.ctypes.data, image.nbytes)
        division = engine.prepare(Kernel(problem, "forward"), [(1, f"IMPLICIT_GEMM.tile={steps}")])
        division.execute(x, w, y, engine.allocate(division.workspace))
        result = y.read("f32", (side // stride) ** 2).reshape(side // stride, -1)
        del image, x
    assert not result[:-1].any()
    np.testing.assert_array_equal(result[-1], 2 * stride * np.arange(side // stride) + 1)

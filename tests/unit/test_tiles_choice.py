"""Tiles are chosen where an algorithm does not fit the limit for one sample, and where they run faster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import mucudnn
from mucudnn._native import Engine, parse_descriptor, tile_copies, tile_steps
from mucudnn.arrays import dispatch
from mucudnn.arrays.call import PassCall
from mucudnn.costs.cache import Cache
from mucudnn.errors import NothingFitsError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Exhaustive, Race
from mucudnn.plans.parts import parts, tiles
from mucudnn.plans.plan import Plan, PlanKernel, write_plan
from mucudnn.problems.kernels import Kernel
from mucudnn.sizes import parse_limit
from mucudnn.solver import Configuration, MicroConfiguration, Tile, Tiling

pytestmark = pytest.mark.usefixtures("cache_path")

PROBLEM = parse_descriptor("ic16ih48_oc16_kh3_ph1")[0]
KERNEL = Kernel(PROBLEM, "forward")
BATCH = PROBLEM.replace(mini_batch=2)
PASSES = ("forward", "backward_data", "backward_filter")


def bench(engine: Engine, cache: Cache) -> Bench:
    return Bench(engine, cache, Listener(), Exhaustive())


def fastest_tiles(engine: Engine, limit: str, pass_: str = "forward") -> Tiling | None:
    with Cache.in_memory(Path("none")) as cache:
        size = parse_limit(limit)
        assert size is not None
        return tiles.fastest_tiles(bench(engine, cache), Kernel(PROBLEM, pass_), "power_of_two", size)


def tile_comparisons(cache: Cache) -> int:
    ((rows,),) = cache.query("SELECT count(*) FROM tile_comparisons")
    return int(rows)


def test_tiles_are_worth_a_try_where_an_algorithm_does_not_fit_one_sample(engine: Engine) -> None:
    largest = max(c.workspace for c in engine.enumerate(KERNEL))
    with Cache.in_memory(Path("none")) as cache:
        assert bench(engine, cache).exceeding(KERNEL, 1, largest - 1)
        assert not bench(engine, cache).exceeding(KERNEL, 1, largest)


def test_tiles_of_a_filter_of_one_tap_are_not_worth_a_try_for_its_transform(engine: Engine) -> None:
    kernel = Kernel(parse_descriptor("ic16ih48_oc16_kh1")[0], "forward")
    others = [c.workspace for c in engine.enumerate(kernel) if "FFT" not in c.algorithm]
    with Cache.in_memory(Path("none")) as cache:
        for runner in (Race(), Exhaustive()):
            exceeding = Bench(engine, cache, Listener(), runner).exceeding(kernel, 1, max(others))
            assert bool(exceeding) is isinstance(runner, Exhaustive)


@pytest.mark.parametrize(("chosen_ms", "is_measured"), [(4.9, False), (5.1, True)])
def test_a_program_that_waits_measures_no_tiles_of_a_short_image(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, chosen_ms: float, is_measured: bool
) -> None:
    chosen = Configuration((MicroConfiguration(1, "IMPLICIT_GEMM", chosen_ms, 0),))
    measured: list[Kernel] = []
    monkeypatch.setattr(tiles, "fastest_tiles", lambda bench, kernel, *_: measured.append(kernel))
    with Cache.in_memory(Path("none")) as cache:
        waiting = Bench(engine, cache, Listener(), Race(is_hurried=True))
        tiles.propose_tiles(waiting, KERNEL, "power_of_two", 512 * 1024, chosen)
        assert measured == [KERNEL] * is_measured
        patient = Bench(engine, cache, Listener(), Race())
        tiles.propose_tiles(patient, KERNEL, "power_of_two", 512 * 1024, chosen)
        assert measured[-1:] == [KERNEL]


@pytest.mark.parametrize("pass_", PASSES)
def test_the_fastest_tiles_add_up_and_stay_within_the_limit(engine: Engine, pass_: str) -> None:
    found = fastest_tiles(engine, "512KiB", pass_)
    assert found is not None
    assert found.steps == tile_steps(Kernel(PROBLEM, pass_))
    assert found.workspace <= 512 * 1024
    assert engine.prepare(Kernel(PROBLEM, pass_), found.slices, tiles=True).workspace == found.workspace


def test_no_tiles_fit_less_than_the_copies_of_the_smallest(engine: Engine) -> None:
    least = tile_copies(KERNEL, 1)
    assert fastest_tiles(engine, str(least - 1)) is None
    assert fastest_tiles(engine, str(least)) is not None


def test_the_comparison_with_a_division_is_kept(engine: Engine, cache_path: Path) -> None:
    found = fastest_tiles(engine, "512KiB")
    assert found is not None
    slow = Configuration((MicroConfiguration(1, "IMPLICIT_GEMM", 1e9, 0),))
    with Cache.open(cache_path) as cache:
        first = parts.are_faster(bench(engine, cache), KERNEL, found, slow)
        assert parts.are_faster(bench(engine, cache), KERNEL, found, slow) is first
        assert tile_comparisons(cache) == 1


def test_tiles_that_are_predicted_to_be_slower_are_not_run(engine: Engine, cache_path: Path) -> None:
    found = fastest_tiles(engine, "512KiB")
    assert found is not None
    fast = Configuration((MicroConfiguration(1, "IMPLICIT_GEMM", 1e-9, 0),))
    with Cache.open(cache_path) as cache:
        assert not parts.are_faster(bench(engine, cache), KERNEL, found, fast)
        assert tile_comparisons(cache) == 0


@pytest.mark.parametrize("pass_", PASSES)
def test_an_array_convolved_in_tiles_gives_what_it_gives_whole(
    pass_: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(1)
    x = generator.random((2, 16, 48, 48), np.float32)
    w = generator.random((16, 16, 3, 3), np.float32)
    calls = {
        "forward": lambda limit: mucudnn.convolution_forward(x, w, padding=1, workspace=limit),
        "backward_data": lambda limit: mucudnn.convolution_backward_data(
            x, w, x.shape, padding=1, workspace=limit
        ),
        "backward_filter": lambda limit: mucudnn.convolution_backward_filter(
            x, x, w.shape, padding=1, workspace=limit
        ),
    }
    whole = calls[pass_]("none")
    monkeypatch.setattr(parts, "are_faster", lambda *_: True)
    in_tiles = calls[pass_](512 * 1024)
    ready = list(dispatch._prepared.values())[-1]
    assert isinstance(ready.configuration, Tiling)
    assert ready.configuration.steps >= 48
    np.testing.assert_allclose(in_tiles, whole, rtol=1e-4)


def test_tiles_are_the_rescue_where_no_division_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object) -> None:
        raise NothingFitsError("nothing fits")

    monkeypatch.setattr(dispatch, "choose_within", nothing)
    x, w = np.ones((1, 16, 48, 48), np.float32), np.ones((16, 16, 3, 3), np.float32)
    y = mucudnn.convolution_forward(x, w, padding=1, workspace=512 * 1024)
    np.testing.assert_allclose(y[0, :, 1:-1, 1:-1], 144, rtol=1e-5)
    with pytest.raises(NothingFitsError):
        mucudnn.convolution_forward(x, w, padding=1, workspace=0)


def plan_with_tiles(pass_: str) -> Plan:
    """Return a plan with an undivided choice and three tiles of different algorithms."""
    names = ("IMPLICIT_GEMM", "WINOGRAD_NONFUSED") if pass_ == "forward" else ("ALGO_1", "WINOGRAD_NONFUSED")
    whole = Configuration((MicroConfiguration(2, names[0], 1.0, 0),))
    cut = [Tile(steps, names[steps % 2], 1.0, 2**20) for steps in (19, 19, 10)]
    return Plan({}, (PlanKernel(Kernel(BATCH, pass_), 1, whole, (whole,), Tiling(tuple(cut))),))


@pytest.mark.parametrize("pass_", PASSES)
def test_tiles_of_a_plan_are_run_and_nothing_is_measured(
    pass_: str, tmp_path: Path, cache_path: Path
) -> None:
    path = tmp_path / "a.plan"
    write_plan(plan_with_tiles(pass_), path)
    call = PassCall(pass_, "cpu", "f32", "nchw", (2, 16, 48, 48), (16, 16, 3, 3), None, 1, 1, 1, 1, None)
    ready = dispatch.prepared(call, path)
    assert ready.configuration == plan_with_tiles(pass_).kernels[0].tiles
    assert not cache_path.exists()
    generator = np.random.default_rng(1)
    x = generator.random((2, 16, 48, 48), np.float32)
    w = generator.random((16, 16, 3, 3), np.float32)
    function, operands = {
        "forward": (mucudnn.convolution_forward, (x, w)),
        "backward_data": (mucudnn.convolution_backward_data, (x, w, x.shape)),
        "backward_filter": (mucudnn.convolution_backward_filter, (x, x, w.shape)),
    }[pass_]
    in_tiles, whole = (function(*operands, padding=1, plan=path, workspace=w) for w in ("none", 0))
    np.testing.assert_allclose(in_tiles, whole, rtol=1e-4)


def test_tiles_of_a_plan_that_do_not_fit_the_workspace_give_way_to_its_choice() -> None:
    call = PassCall(
        "forward", "cpu", "f32", "nchw", (2, 16, 48, 48), (16, 16, 3, 3), None, 1, 1, 1, 1, 2**20 - 1
    )
    (kernel,) = plan_with_tiles("forward").kernels
    assert dispatch.prepared(call, plan_with_tiles("forward")).configuration == kernel.chosen
    roomy = call._replace(workspace=2**20)
    assert dispatch.prepared(roomy, plan_with_tiles("forward")).configuration == kernel.tiles

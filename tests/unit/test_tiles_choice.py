"""Tiles are chosen, planned and followed like any other algorithm of one sample."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import mucudnn
from mucudnn._native import Engine, parse_descriptor
from mucudnn.arrays import devices, dispatch
from mucudnn.arrays.call import PassCall
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Measurement
from mucudnn.costs.table import CostTable
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench, machine_of
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.runners import Exhaustive
from mucudnn.output.text import micro_batches
from mucudnn.plans.decide import Limits, decide, desirable_configurations
from mucudnn.plans.plan import Plan, PlanKernel, write_plan
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration, is_tiled, tile_of

pytestmark = pytest.mark.usefixtures("cache_path")

PROBLEM = parse_descriptor("ic16ih96_oc16_kh3_ph1")[0]
PASSES = ("forward", "backward_data", "backward_filter")


def rows(kernel: Kernel, costs: dict[tuple[int, str], tuple[float, int]]) -> list[Measurement]:
    """Return measurements of (ms, bytes) for each (micro-batch, algorithm)."""
    return [
        Measurement(size, name, "CUDNN_STATUS_SUCCESS", workspace, time_ms=ms)
        for (size, name), (ms, workspace) in costs.items()
    ]


COSTS = {
    (1, "LEAN"): (4.0, 0),
    (1, "FAST"): (1.0, 800),
    (1, "FAST.tile=8"): (1.5, 100),
    (1, "FAST.tile=32"): (1.2, 400),
    (2, "LEAN"): (7.0, 0),
    (2, "FAST"): (1.5, 1600),
    (3, "LEAN"): (10.0, 0),
}


def test_the_desirable_set_holds_tiles_micro_batches_and_their_products() -> None:
    kernel = Kernel(PROBLEM.replace(mini_batch=3), "forward")
    front = desirable_configurations(rows(kernel, COSTS), kernel)
    parts = [MicroConfiguration(n, name, *cost) for (n, name), cost in COSTS.items()]
    every = [
        Configuration(choice)
        for count in (1, 2, 3)
        for choice in itertools.combinations_with_replacement(parts, count)
        if sum(part.micro_batch for part in choice) == 3
    ]
    best: dict[int, float] = {}
    for workspace in sorted({c.workspace for c in every}):
        fastest = min(c.time_ms for c in every if c.workspace <= workspace)
        if fastest < min(best.values(), default=float("inf")):
            best[workspace] = fastest
    assert {c.workspace: c.time_ms for c in front} == pytest.approx(best)
    assert any(is_tiled(part.algorithm) for c in front for part in c.parts)


@pytest.mark.parametrize("limits", [Limits(workspace=400), Limits(total=400)], ids=["wr", "wd"])
def test_tiles_are_chosen_within_a_limit_and_are_not_the_best_undivided(limits: Limits) -> None:
    kernel = Kernel(PROBLEM, "forward")
    costs = CostTable(machine_of(dispatch_engine()), {kernel: rows(kernel, COSTS)}, complete=True)
    [decision] = decide(costs, "power_of_two", limits)
    assert str(decision.divided) == "1*1 FAST.tile=32"
    assert str(decision.undivided) == "1*1 LEAN"
    assert decision.divided.is_divided
    assert micro_batches(decision.divided) == "1×1 FAST in tiles of 32"


def dispatch_engine() -> Engine:
    return devices.device_named("cpu").engine


@pytest.mark.parametrize("pass_", PASSES)
def test_tiles_are_measured_for_one_sample_of_any_mini_batch(engine: Engine, pass_: str) -> None:
    kernel = Kernel(PROBLEM.replace(mini_batch=2), pass_)
    with Cache.in_memory(Path("none")) as cache:
        bench = Bench(engine, cache, Listener(), Exhaustive())
        benchmark(bench, [kernel], "power_of_two")
        measured = bench.costs([kernel]).measurements[kernel]
    assert {row.micro_batch for row in measured if is_tiled(row.algorithm)} == {1}
    assert all(row.time_ms for row in measured if is_tiled(row.algorithm))


@pytest.mark.parametrize("name", ["WINOGRAD.tile=8", "WINOGRAD", "eng1_k2=3.tile=16", "A.tile=x"])
def test_the_name_of_an_algorithm_says_whether_it_runs_in_tiles(name: str) -> None:
    tiles = {"WINOGRAD.tile=8": ("WINOGRAD", 8), "eng1_k2=3.tile=16": ("eng1_k2=3", 16)}
    assert tile_of(name) == tiles.get(name)


def plan_with_tiles(pass_: str, mini_batch: int = 2) -> Plan:
    """Return a plan that computes each sample in tiles, and could run GEMM without a workspace."""
    gemm = "IMPLICIT_GEMM" if pass_ == "forward" else "ALGO_1"
    tiles = Configuration((MicroConfiguration(1, "WINOGRAD_NONFUSED.tile=19", 1.0, 2**21),) * mini_batch)
    whole = Configuration((MicroConfiguration(mini_batch, gemm, 9.0, 0),))
    kernel = Kernel(PROBLEM.replace(mini_batch=mini_batch), pass_)
    return Plan({}, (PlanKernel(kernel, 1, tiles, (whole, tiles)),))


@pytest.mark.parametrize("pass_", PASSES)
def test_tiles_of_a_plan_are_run_and_nothing_is_measured(
    pass_: str, tmp_path: Path, cache_path: Path
) -> None:
    path = tmp_path / "a.plan"
    write_plan(plan_with_tiles(pass_), path)
    call = PassCall(pass_, "cpu", "f32", "nchw", (2, 16, 96, 96), (16, 16, 3, 3), None, 1, 1, 1, 1, None)
    ready = dispatch.prepared(call, path)
    assert ready.configuration == plan_with_tiles(pass_).kernels[0].chosen
    assert not cache_path.exists()
    generator = np.random.default_rng(1)
    x = generator.random((2, 16, 96, 96), np.float32)
    w = generator.random((16, 16, 3, 3), np.float32)
    function, operands = {
        "forward": (mucudnn.convolution_forward, (x, w)),
        "backward_data": (mucudnn.convolution_backward_data, (x, w, x.shape)),
        "backward_filter": (mucudnn.convolution_backward_filter, (x, x, w.shape)),
    }[pass_]
    in_tiles, whole = (function(*operands, padding=1, plan=path, workspace=w) for w in ("none", 0))
    np.testing.assert_allclose(in_tiles, whole, rtol=1e-4)

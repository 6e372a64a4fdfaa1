"""Divided filter gradients are finite if the undivided ones are, also where a part exceeds the whole by far.

In fp16 a part of the mini-batch may exceed the range, so mucudnn does not divide filter gradients in fp16.
The type bf16 has the range of fp32.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from drawn_problems import divisions
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_cases import examples
from reference import EPSILON, PASSES, Array, CheckedKernel, cancelling_values, convolve

import mucudnn
from mucudnn._native import (
    Engine,
    EngineError,
    Problem,
    most_slices,
    parse_descriptor,
    tile_steps,
)
from mucudnn.arrays.devices import device_named
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import SUCCESS, Measurement
from mucudnn.errors import UsageError
from mucudnn.measuring.bench import machine_of
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import POLICIES
from mucudnn.solver import Configuration, MicroConfiguration, is_tiled

GRADIENT = "backward_filter"
PROBLEM = Problem(
    mini_batch=8, in_channels=3, out_channels=4, input=(12, 12), kernel=(3, 3), padding=1, data_type="f16"
)
LARGEST = {"f16": 4e5, "bf16": 2.5e38, "f32": 2.5e38}  # above fp16's range, near the end of the others


class Cancelling(CheckedKernel):
    """A checked kernel with values for which the gradients of both halves nearly cancel."""

    def __init__(self, engine: Engine, problem: Problem, seed: int = 1) -> None:
        super().__init__(engine, Kernel(problem, GRADIENT))
        for name, values in cancelling_values(problem, LARGEST[problem.data_type], seed).items():
            in_memory = values if problem.layout == "nchw" else np.moveaxis(values, 1, -1)
            self.memory[name].write(problem.data_type, in_memory.reshape(-1))
            self.values[name] = self._load(name)

    def gradient_of(self, samples: slice) -> Array:
        """Return the filter gradient of some samples in fp64."""
        part = self.problem.replace(mini_batch=len(range(*samples.indices(self.problem.mini_batch))))
        x, w, y = (self.values[name] for name in "xwy")
        return convolve(part, GRADIENT, x[samples], w, y[samples])

    def check(self, result: Array) -> None:
        """Check that the error of a result is at most twice that of the same algorithm run undivided."""
        exact = self.exact()
        whole = self.run([(self.problem.mini_batch, "ALGO_1")], over=0.0)
        assert np.isfinite(whole).all()
        assert np.isfinite(result).all()
        rounding = EPSILON[self.problem.data_type] * self.magnitude()
        assert np.linalg.norm(result - exact) <= 2 * np.linalg.norm(whole - exact) + 2 * rounding


def in_slices(*sizes: int, workspace: int = 2**20) -> Configuration:
    return Configuration(tuple(MicroConfiguration(size, "ALGO_1", 1.0, workspace) for size in sizes))


def plan_of(chosen: Configuration, *others: Configuration) -> Plan:
    return Plan({}, (PlanKernel(Kernel(PROBLEM, GRADIENT), 1, chosen, (chosen, *others)),))


# --- the number of slices ---


@pytest.mark.parametrize("data_type", ["f32", "f64", "f16", "bf16"])
def test_only_gradients_of_filters_in_16_bits_have_a_greatest_number_of_slices(data_type: str) -> None:
    kernels = [Kernel(PROBLEM.replace(data_type=data_type), pass_) for pass_ in PASSES]
    *others, gradient = [min(most_slices(kernel), 2**62) for kernel in kernels]
    assert others == [2**62, 2**62]
    assert gradient == {"f16": 1, "bf16": 4}.get(data_type, 2**62)


REFUSED = "a filter gradient in f16 in {} slices is refused: the sum of a slice may overflow"


@given(sizes=divisions(8))
def test_divisions_of_a_filter_gradient_in_fp16_are_refused(engine: Engine, sizes: list[int]) -> None:
    checked = Cancelling(engine, PROBLEM)
    parts = [(size, "ALGO_1") for size in sizes]
    if len(parts) == 1:
        checked.check(checked.run(parts, over=0.0))
        return
    with pytest.raises(EngineError, match=re.escape(REFUSED.format(len(sizes)))):
        engine.prepare(Kernel(PROBLEM, GRADIENT), parts)


@pytest.mark.parametrize("mini_batch", [1, 8])
@pytest.mark.parametrize("data_type", ["f16", "bf16"])
def test_tiles_of_a_filter_gradient_in_16_bits_are_refused(
    data_type: str, mini_batch: int, engine: Engine
) -> None:
    kernel = Kernel(PROBLEM.replace(mini_batch=mini_batch, data_type=data_type), GRADIENT)
    half = tile_steps(kernel) // 2
    with pytest.raises(EngineError, match=f"in {data_type} does not run in tiles"):
        engine.prepare(kernel, [(mini_batch, f"ALGO_1.tile={half}")])


# --- decisions ---


@settings(max_examples=examples(30))
@given(
    sizes=divisions(8),
    data_type=st.sampled_from(["bf16", "f32"]),
    layout=st.sampled_from(["nchw", "nhwc"]),
    seed=st.integers(1, 1000),
)
def test_slices_near_the_end_of_bf16_and_fp32_sum_to_what_the_undivided_call_does(
    engine: Engine, sizes: list[int], data_type: str, layout: str, seed: int
) -> None:
    assume(data_type == "f32" or len(sizes) <= 4)
    checked = Cancelling(engine, PROBLEM.replace(data_type=data_type, layout=layout), seed)
    assert 2e38 < np.abs(checked.gradient_of(slice(4))).max() < 3.39e38
    checked.check(checked.run([(size, "ALGO_1") for size in sizes], over=0.0))


@pytest.fixture
def tempting_cache(cache_path: Path) -> Path:
    """Write a cache in which small micro-batches of fp16 gradients are fastest."""
    engine = device_named("cpu").engine
    with Cache.open(cache_path) as cache:
        for size in range(1, 9):
            row = Measurement(size, "ALGO_1", SUCCESS, 0, time_ms=float(size**2))
            cache.add(machine_of(engine), Kernel(PROBLEM.replace(mini_batch=size), GRADIENT), row)
    return cache_path


@pytest.mark.parametrize("limit", [0, 2**20, "none"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.usefixtures("tempting_cache")
def test_with_every_policy_and_limit_the_gradient_of_arrays_is_finite(
    policy: str, limit: int | str, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_BATCH_POLICY", policy)
    checked = Cancelling(engine, PROBLEM)
    assert np.abs(checked.gradient_of(slice(4))).max() > 65504
    x, dy = (checked.values[name].astype(np.float16) for name in "xy")
    checked.check(mucudnn.convolution_backward_filter(x, dy, (4, 3, 3, 3), padding=1, workspace=limit))


def test_only_the_whole_mini_batch_of_such_a_gradient_is_measured(
    cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_BATCH_POLICY", "all")
    x, dy = np.ones((8, 3, 12, 12), np.float16), np.ones((8, 4, 12, 12), np.float16)
    mucudnn.convolution_backward_filter(x, dy, (4, 3, 3, 3), padding=1)
    with Cache.read_only(cache_path) as cache:
        rows = cache.measurements(machine_of(device_named("cpu").engine), Kernel(PROBLEM, GRADIENT))
    assert {row.micro_batch for row in rows} == {8}


def test_no_tiles_of_filter_gradients_in_16_bits_are_listed(engine: Engine) -> None:
    large = parse_descriptor("ic16ih128_oc16_kh3_ph1")[0]
    for data_type in ("f32", "f16", "bf16"):
        names = [c.algorithm for c in engine.enumerate(Kernel(large.replace(data_type=data_type), GRADIENT))]
        assert any(map(is_tiled, names)) == (data_type == "f32")


# --- plans edited by hand that divide such a gradient ---


def call(plan: Plan) -> Array:
    x, dy = np.ones((8, 3, 12, 12), np.float16), np.ones((8, 4, 12, 12), np.float16)
    return mucudnn.convolution_backward_filter(x, dy, (4, 3, 3, 3), padding=1, plan=plan)


@pytest.mark.parametrize("sizes", [(4, 4), (1,) * 8])
def test_a_plan_that_divides_a_gradient_in_fp16_is_refused(sizes: tuple[int, ...]) -> None:
    message = rf"the plan cannot be followed: {re.escape(REFUSED.format(len(sizes)))}.*make the plan again"
    with pytest.raises(UsageError, match=message):
        call(plan_of(in_slices(*sizes), in_slices(8)))
    assert np.isfinite(call(plan_of(in_slices(8), in_slices(*sizes)))).all()

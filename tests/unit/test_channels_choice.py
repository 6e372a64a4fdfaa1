"""Groups of channels are chosen where an algorithm does not fit the limit, and where they run faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import mucudnn
from mucudnn._native import Engine, group_kernel, parse_descriptor
from mucudnn.arrays import dispatch
from mucudnn.arrays.call import PassCall
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import SUCCESS, Comparison, Measurement
from mucudnn.costs.schema import COMPARISON
from mucudnn.listener import Listener
from mucudnn.measuring import compare
from mucudnn.measuring.bench import Bench, RecordedBench
from mucudnn.measuring.runners import Exhaustive, Race
from mucudnn.output.text import micro_batches
from mucudnn.plans.decide import Decision, Limits
from mucudnn.plans.parts import channels, parts
from mucudnn.plans.plan import Plan, PlanKernel, write_plan
from mucudnn.plans.result import Result, to_json, to_plan, total_workspace
from mucudnn.plans.sweep import sweep
from mucudnn.problems.kernels import Kernel
from mucudnn.report.gather import gather
from mucudnn.report.page import render
from mucudnn.solver import ChannelGroup, ChannelGroups, Configuration, MicroConfiguration

pytestmark = pytest.mark.usefixtures("cache_path")

PROBLEM = parse_descriptor("mb2_ic64ih10_oc64_kh3_ph1")[0]
FORWARD = Kernel(PROBLEM, "forward")
PASSES = ("forward", "backward_data", "backward_filter")
# Between Winograd's workspace for one sample of a half and of all channels. A half with its copies fits, too.
LIMIT = 768 * 1024
WHOLE = Configuration((MicroConfiguration(2, "IMPLICIT_GEMM", 1e9, 0),))


@pytest.fixture
def bench(engine: Engine) -> Iterator[Bench]:
    with Cache.in_memory(Path("none")) as cache:
        yield Bench(engine, cache, Listener(), Exhaustive())


def kernel(text: str, pass_: str = "forward") -> Kernel:
    return Kernel(parse_descriptor(text)[0], pass_)


@pytest.mark.parametrize(
    ("text", "pass_", "counts"),
    [
        ("ic3ih8_oc512_kh1", "forward", [256, 128, 64, 32]),  # sixteen groups at most
        ("ic3ih8_oc96_kh1", "backward_filter", [48, 24]),  # halves of at least 16 channels
        ("ic3ih8_oc96_kh1", "backward_data", []),
        ("ic208ih8_oc3_kh1", "backward_data", [104]),  # 52 is not a multiple of 8
        ("ic3ih8_oc27_kh1", "forward", []),
        ("g2ic64ih8_oc64_kh1", "forward", [32]),  # whole groups of the convolution
        ("g64ic64ih8_oc128_kh1", "forward", [64, 32, 16]),
        ("g64ic64ih8_oc128_kh1", "backward_data", [32, 16]),
        ("ic3ih8_oc32_kh1+bias+relu", "forward", [16]),
        ("ic3ih8_oc32_kh1+add+bias+relu", "forward", []),  # the tensor that is added may be the output
        ("ic3ih8_oc32_kh1+add0+bias+relu", "forward", [16]),  # it is not read
    ],
)
def test_groups_have_a_half_of_the_channels_or_a_quarter_and_so_on(
    text: str, pass_: str, counts: list[int]
) -> None:
    assert list(channels.channel_counts(kernel(text, pass_))) == counts


def add(bench: Bench, kernel: Kernel, size: int, algorithm: str, ms: float, workspace: int) -> None:
    bench.cache.add(bench.machine, kernel, Measurement(size, algorithm, SUCCESS, workspace, time_ms=ms))


def test_fewer_channels_are_tried_only_if_an_algorithm_that_does_not_fit_may_be_faster(bench: Bench) -> None:
    workspaces = {c.algorithm: c.workspace for c in bench.candidates(FORWARD, [2])[2]}
    most = max(workspaces.values())
    largest = next(name for name, size in workspaces.items() if size == most)
    assert channels.limit_may_exclude_fastest(bench, FORWARD, "power_of_two", most - 1)
    assert not channels.limit_may_exclude_fastest(bench, FORWARD, "power_of_two", most)
    # The largest algorithm is measured, and is not fast enough.
    add(bench, FORWARD, 2, "IMPLICIT_GEMM", 1.0, 0)
    add(bench, FORWARD, 2, largest, 0.96, most)
    assert not channels.limit_may_exclude_fastest(bench, FORWARD, "power_of_two", most - 1)
    add(bench, FORWARD, 2, largest, 0.94, most)
    assert channels.limit_may_exclude_fastest(bench, FORWARD, "power_of_two", most - 1)


def fill(bench: Bench, pass_: str, ms: float) -> Kernel:
    """Measure a half of the channels with the engine, the whole by its slowest algorithm, in `ms`."""
    whole = Kernel(PROBLEM, pass_)
    slowest = "IMPLICIT_GEMM" if pass_ == "forward" else "ALGO_1"
    for size in (1, 2):
        add(bench, whole, size, slowest, ms, 0)
    return whole


def test_a_sweep_has_groups_where_they_are_faster_than_micro_batches(bench: Bench) -> None:
    for size, listed in bench.candidates(FORWARD, [1, 2]).items():
        for c in listed:
            add(bench, FORWARD, size, c.algorithm, 1e6 if c.workspace <= LIMIT else 1.0, c.workspace)
    (swept,) = sweep(bench, [FORWARD], (), LIMIT)
    for point in swept.points:
        assert isinstance(point.divided, ChannelGroups)
        assert point.divided.channels == 64
        assert point.divided.workspace <= LIMIT
        assert point.undivided is not None
        assert point.undivided.time_ms == 1e6
    (without_limit,) = sweep(bench, [FORWARD], (), None)
    assert not any(isinstance(point.divided, ChannelGroups) for point in without_limit.points)


@pytest.mark.parametrize("pass_", PASSES)
def test_the_fastest_groups_add_up_and_stay_within_the_limit(bench: Bench, pass_: str) -> None:
    whole = fill(bench, pass_, 1e6)
    groups = channels.propose_groups(bench, whole, "power_of_two", LIMIT)
    assert groups is not None
    assert (groups.channels, len(groups.parts) > 1) == (64, True)
    assert groups.workspace <= LIMIT
    assert bench.engine.prepare_groups(whole, groups.groups, groups.of_inputs).workspace == groups.workspace


@pytest.mark.parametrize("fast", ["outputs", "inputs"])
def test_groups_of_a_filter_gradient_divide_the_channels_that_take_less_time(bench: Bench, fast: str) -> None:
    whole = kernel("mb2_ic64ih10_oc128_kh3_ph1", "backward_filter")
    for of_inputs, channels_ in ((False, 64), (True, 32)):
        group = group_kernel(whole, channels_, of_inputs)
        ms = 1.0 if of_inputs == (fast == "inputs") else 2.0
        add(bench, group, 2, "ALGO_1", ms, 0)
    add(bench, whole, 2, "ALGO_1", 100.0, 0)
    groups = channels.choose_groups(bench.cache, bench.machine, whole, "power_of_two", LIMIT)
    assert groups is not None
    assert (groups.of_inputs, groups.time_ms) == (fast == "inputs", 2.0)
    assert groups.channels == (64 if groups.of_inputs else 128)
    assert ("inputs (" in str(groups)) is ("input channels" in micro_batches(groups)) is groups.of_inputs
    assert bench.engine.prepare_groups(whole, groups.groups, groups.of_inputs).workspace <= LIMIT
    beside = PlanKernel(whole, 1, WHOLE, (WHOLE,), groups=groups)
    assert Plan.parse(str(Plan({}, (beside,)))).kernels == (beside,)


def test_one_group_of_all_channels_is_no_group(bench: Bench) -> None:
    whole = fill(bench, "forward", 1e-9)
    assert channels.propose_groups(bench, whole, "power_of_two", LIMIT) is None


def test_groups_are_measured_as_the_ordinary_kernels_that_they_are(bench: Bench) -> None:
    whole = fill(bench, "forward", 1e6)
    channels.propose_groups(bench, whole, "power_of_two", LIMIT)
    rows = bench.cache.measurements(bench.machine, group_kernel(whole, 32))
    assert {row.micro_batch for row in rows if row.time_ms is not None} == {1, 2}
    assert all(row.workspace <= LIMIT for row in rows if row.time_ms is not None)


@pytest.mark.parametrize("policy", ["undivided", "power_of_two"])
def test_an_undivided_policy_divides_no_channels(bench: Bench, policy: str) -> None:
    whole = fill(bench, "forward", 1e6)
    groups = parts.faster_groups(bench, whole, policy, LIMIT, None)
    assert (groups is None) is (policy == "undivided")


def test_groups_of_a_fused_kernel_are_compared_with_a_division(bench: Bench) -> None:
    fused = kernel("mb2_ic64ih10_oc64_kh3_ph1+bias+relu")
    algorithm = bench.candidates(fused, [2])[2][0].algorithm
    half, whole = (Configuration((MicroConfiguration(2, algorithm, ms, 0),)) for ms in (1.0, 1e9))
    groups = ChannelGroups((ChannelGroup(32, half), ChannelGroup(32, half)))
    parts.are_faster(bench, fused, groups, whole)
    assert bench.cache.comparison(bench.machine, fused, whole, groups) is not None


def test_a_disturbed_comparison_keeps_the_division_and_is_not_kept(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = channels.propose_groups(bench, fill(bench, "forward", 1e6), "power_of_two", LIMIT)
    assert groups is not None
    fast = Comparison(2.0, 1.0, 0.0, 0.0)
    monkeypatch.setattr(compare, "compare", lambda *_: (fast, True))
    assert not parts.are_faster(bench, FORWARD, groups, WHOLE)
    monkeypatch.setattr(compare, "compare", lambda *_: (fast, False))
    assert parts.are_faster(bench, FORWARD, groups, WHOLE)


@pytest.mark.parametrize("stock_over_groups", [0.5, 2.0])
def test_groups_must_beat_the_engines_best_and_the_prediction_of_stock(
    bench: Bench, stock_over_groups: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = channels.propose_groups(bench, fill(bench, "forward", 1e6), "power_of_two", LIMIT)
    assert groups is not None
    stock = Configuration((MicroConfiguration(2, "STOCK", groups.time_ms * stock_over_groups, 0),))
    for beats_the_engine in (True, False):
        monkeypatch.setattr(parts, "are_faster", lambda *_, beats=beats_the_engine: beats)
        chosen = parts.faster_groups(bench, FORWARD, "power_of_two", LIMIT, stock)
        assert (chosen == groups) is (beats_the_engine and stock_over_groups > 1)


def test_a_program_that_waits_gets_one_round_of_a_long_comparison(
    bench: Bench,
) -> None:
    groups = channels.propose_groups(bench, fill(bench, "forward", 1e6), "power_of_two", LIMIT)
    assert groups is not None
    bench.runner = Race(is_hurried=True)
    close = Configuration((MicroConfiguration(2, "IMPLICIT_GEMM", groups.time_ms * 1.04, 0),))
    assert not parts.are_faster(bench, FORWARD, groups, close)
    assert bench.cache.select(COMPARISON) == []
    parts.are_faster(bench, FORWARD, groups, WHOLE)  # it promises to take 1e9 ms
    compared = bench.cache.comparison(bench.machine, FORWARD, WHOLE, groups)
    assert compared is not None
    assert (compared.undivided_spread_ms, compared.divided_spread_ms) == (0.0, 0.0)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("own_groups", [1, 2])
def test_an_array_convolved_in_groups_gives_what_it_gives_whole(
    own_groups: int, pass_: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(1)
    each = 64 // own_groups
    sample, filters = ((64, 10, 10), (each, 3, 3)) if layout == "nchw" else ((10, 10, 64), (3, 3, each))
    x = generator.random((2, *sample), np.float32)
    w = generator.random((64, *filters), np.float32)
    function, operands = {
        "forward": (mucudnn.convolution_forward, (x, w)),
        "backward_data": (mucudnn.convolution_backward_data, (x, w, x.shape)),
        "backward_filter": (mucudnn.convolution_backward_filter, (x, x, w.shape)),
    }[pass_]
    function = partial(function, padding=1, layout=layout, groups=own_groups)
    whole = function(*operands, workspace=0)
    monkeypatch.setattr(channels, "divide_channels", lambda sets, *_, limit, **_more: halves(sets, limit))
    monkeypatch.setattr(parts, "are_faster", lambda *_: True)
    monkeypatch.setattr(channels, "limit_may_exclude_fastest", lambda *_: True)
    in_groups = function(*operands, workspace=LIMIT)
    ready = list(dispatch._prepared.values())[-1]
    assert isinstance(ready.configuration, ChannelGroups)
    assert ready.workspace <= LIMIT
    np.testing.assert_allclose(in_groups, whole, rtol=1e-4)


def halves(sets: dict[int, list[Configuration]], limit: int) -> list[ChannelGroups]:
    """Return two groups of the fastest configuration that fits."""
    fitting = [configuration for configuration in sets[32] if configuration.workspace <= limit]
    return [ChannelGroups((ChannelGroup(32, fitting[-1]),) * 2)]


def plan_with_groups(pass_: str) -> Plan:
    """Return a plan with an undivided choice, and two groups of different algorithms."""
    names = ("IMPLICIT_GEMM", "WINOGRAD_NONFUSED") if pass_ == "forward" else ("ALGO_1", "WINOGRAD_NONFUSED")
    whole = Configuration((MicroConfiguration(2, names[0], 3.0, 0),))
    groups = [
        ChannelGroup(32, Configuration((MicroConfiguration(1, name, 0.5, 2**20),) * 2)) for name in names
    ]
    return Plan(
        {}, (PlanKernel(Kernel(PROBLEM, pass_), 1, whole, (whole,), groups=ChannelGroups(tuple(groups))),)
    )


@pytest.mark.parametrize("pass_", PASSES)
def test_groups_of_a_plan_are_run_and_nothing_is_measured(
    pass_: str, tmp_path: Path, cache_path: Path
) -> None:
    path = tmp_path / "a.plan"
    plan = plan_with_groups(pass_)
    write_plan(plan, path)
    assert Plan.parse(path.read_text()) == plan
    call = PassCall(pass_, "cpu", "f32", "nchw", (2, 64, 10, 10), (64, 64, 3, 3), None, 1, 1, 1, 1, None)
    ready = dispatch.prepared(call, path)
    assert ready.configuration == plan.kernels[0].groups
    assert ready.predicted_ms == 2.0
    generous, tight = (dispatch.prepared(call._replace(workspace=w), path) for w in (2**20, 2**20 - 1))
    assert (generous.configuration, tight.configuration) == (ready.configuration, plan.kernels[0].chosen)
    assert not cache_path.exists()


def decided(bench: Bench, limits: Limits) -> Result:
    """Return a result with a choice that takes far too long."""
    fill(bench, "forward", 1e6)
    choice = Configuration((MicroConfiguration(2, "IMPLICIT_GEMM", 1e6, 0),))
    roomy = Configuration((MicroConfiguration(2, "IMPLICIT_GEMM", 1e6, LIMIT),))
    chosen = choice if limits.mode == "wr" else roomy
    ran = Comparison(1e6, 1e6, 0.0, 0.0)
    decision = Decision(FORWARD, (chosen,), choice, chosen, comparison=ran)
    return Result(bench.machine, "power_of_two", limits, 0, (decision,))


def with_groups(bench: Bench, before: Result, *, run: bool = True) -> Result:
    made = bench.made.total()
    decisions = parts.add_groups(bench, before.decisions, before.policy, before.limits, run=run)
    return replace(before, decisions=tuple(decisions), new_measurements=bench.made.total() - made)


@pytest.mark.parametrize("limits", [Limits(workspace=LIMIT), Limits(total=LIMIT)], ids=["wr", "wd"])
def test_a_result_has_groups_where_they_beat_the_choice_and_its_plan_keeps_both(
    bench: Bench, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LEAST_SPEEDUP", 0.0)
    before = decided(bench, limits)
    result = with_groups(bench, before)
    [decision] = result.decisions
    assert decision.groups is not None
    assert decision.groups.workspace <= LIMIT
    assert decision.divided == before.decisions[0].divided
    compared = bench.cache.comparison(bench.machine, FORWARD, decision.divided, decision.groups)
    assert compared is not None
    assert decision.time_ms == compared.divided_ms
    assert result.new_measurements > 1
    assert with_groups(bench, before).new_measurements == 0
    [planned] = to_plan(result).kernels
    assert (planned.chosen, planned.groups) == (decision.divided, decision.groups)
    [row] = to_json(result)["kernels"]
    assert row["groups"]["measured_ms"] == to_json(result)["total"]["divided_ms"] == compared.divided_ms
    assert row["divided"]["time_ms"] == decision.divided.time_ms
    assert total_workspace(result) == decision.groups.workspace


def test_groups_that_run_slower_than_the_choice_are_dropped(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "LEAST_SPEEDUP", float("inf"))
    [decision] = with_groups(bench, decided(bench, Limits(workspace=LIMIT))).decisions
    assert (decision.groups, decision.groups_ms) == (None, None)


@pytest.mark.parametrize("limits", [Limits(workspace=LIMIT), Limits(total=LIMIT)], ids=["wr", "wd"])
def test_without_a_run_predictions_decide_about_groups_and_a_replay_decides_the_same(
    bench: Bench, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = decided(bench, limits)
    monkeypatch.setattr(compare, "compare", None)  # nothing is run whole
    result = with_groups(bench, before, run=False)
    [decision] = result.decisions
    assert decision.groups is not None
    assert decision.groups_ms is None
    assert decision.time_ms == decision.groups.time_ms
    assert result.new_measurements > 0
    recorded = RecordedBench(bench.machine, bench.cache, Listener())
    replayed = with_groups(recorded, before, run=False)
    assert replayed == replace(result, new_measurements=0)
    quick = replace(decision.groups.parts[0].configuration.parts[0], time_ms=1e-9)
    fast = replace(before.decisions[0], divided=Configuration((quick,)), comparison=None)
    assert with_groups(recorded, replace(before, decisions=(fast,)), run=False).decisions == (fast,)


def test_a_replay_believes_a_recorded_comparison_rather_than_the_prediction(bench: Bench) -> None:
    before = decided(bench, Limits(workspace=LIMIT))
    groups = with_groups(bench, before, run=False).decisions[0].groups
    assert groups is not None
    lost = Comparison(1.0, 2.0, 0.0, 0.0)
    bench.cache.add_comparison(bench.machine, FORWARD, before.decisions[0].divided, groups, lost)
    recorded = RecordedBench(bench.machine, bench.cache, Listener())
    assert with_groups(recorded, before, run=False) == before


def test_a_report_shows_groups_and_counts_them_in_its_curves(bench: Bench) -> None:
    result = with_groups(bench, decided(bench, Limits(workspace=LIMIT)), run=False)
    [decision] = result.decisions
    assert decision.groups is not None
    report = gather("net", result, bench.costs([FORWARD]))
    assert report.even.at(LIMIT) == report.divided.at(LIMIT) == decision.groups.time_ms
    assert report.workspace == decision.groups.workspace
    page = render(report, date(2026, 3, 4))
    for line in micro_batches(decision.groups).split("\n"):
        assert f'<span class="part">{line}</span>' in page
    assert "groups of channels, instead of 1×2 IMPLICIT_GEMM" in page


def test_without_a_limit_a_result_stays_as_it_is(bench: Bench) -> None:
    before = decided(bench, Limits())
    assert with_groups(bench, before) == before

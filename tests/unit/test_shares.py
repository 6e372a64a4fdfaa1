"""Identical kernels may take different configurations of one total: decisions, plans, and layers."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from cached_rows import HERE
from fake_engine import FakeEngine

from mucudnn._native import Engine, parse_descriptor
from mucudnn.cli.plan import ShownPlan
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Comparison, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.decide import Decision, Limits, decide
from mucudnn.plans.optimizer import keep_fastest, optimize
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.plans.result import Result, split_shares, to_json, to_plan, total, total_workspace
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

MiB = 2**20
LEAN = Configuration((MicroConfiguration(8, "LEAN", 16.0, 0),))
HUNGRY = Configuration((MicroConfiguration(8, "HUNGRY", 8.0, 8 * MiB),))


def kernel(count: int, channels: int = 4) -> Kernel:
    problem = parse_descriptor(f"f32:mb8_ic{channels}ih5_oc4_kh3")[0]
    return Kernel(problem, "forward", f"layer{channels}", count)


def rows() -> list[Measurement]:
    success = "CUDNN_STATUS_SUCCESS"
    return [Measurement(8, c.parts[0].algorithm, success, c.workspace, "", c.time_ms) for c in (LEAN, HUNGRY)]


def decide_within(total: int, *kernels: Kernel) -> Result:
    table = CostTable(HERE, {kernel: rows() for kernel in kernels})
    limits = Limits(total=total, exact=True)
    return Result(HERE, "undivided", limits, 0, tuple(decide(table, "undivided", limits)))


def numbers(decision: Decision) -> list[tuple[int, str]]:
    return [(share.kernel.count, share.divided.parts[0].algorithm) for share in decision.shares]


def test_the_total_gives_memory_to_as_many_identical_kernels_as_it_suffices_for() -> None:
    result = decide_within(20 * MiB, kernel(3))
    (decision,) = result.decisions
    assert decision.divided == LEAN  # one configuration for all three
    assert numbers(decision) == [(2, "HUNGRY"), (1, "LEAN")]
    assert total(result.decisions).divided_ms == 48
    assert total(split_shares(result).decisions).divided_ms == 32
    assert total_workspace(split_shares(result)) == 16 * MiB


def test_the_shares_of_all_kernels_together_stay_within_the_total() -> None:
    result = decide_within(24 * MiB, kernel(3), kernel(1, 5))
    three, single = result.decisions
    assert (three.divided, single.divided) == (HUNGRY, LEAN)
    assert (three.shares, single.shares) == ((), ())  # no other division is faster
    result = decide_within(16 * MiB, kernel(3), kernel(1, 5))
    three, single = result.decisions
    assert (three.divided, single.divided) == (LEAN, HUNGRY)
    assert total_workspace(split_shares(result)) == 16 * MiB
    assert sum(share.kernel.count for share in three.apart) == 3


@pytest.mark.parametrize("limits", [Limits(workspace=20 * MiB), Limits(total=24 * MiB), Limits(total=0)])
def test_there_are_no_shares_where_identical_kernels_gain_nothing_by_differing(limits: Limits) -> None:
    (decision,) = decide(CostTable(HERE, {kernel(3): rows()}), "undivided", limits)
    assert decision.shares == ()


def compared(decision: Decision, undivided_ms: float, divided_ms: float) -> Decision:
    return replace(decision, comparison=Comparison(undivided_ms, divided_ms, 0, 0))


def test_shares_that_are_slower_when_run_whole_are_dropped() -> None:
    (decision,) = decide_within(20 * MiB, kernel(3)).decisions
    hungry, lean = decision.shares
    slow = replace(compared(decision, 16, 16), shares=(compared(hungry, 17, 17), compared(lean, 16, 16)))
    fast = replace(slow, shares=(compared(hungry, 8, 8), compared(lean, 16, 16)))
    assert keep_fastest([slow])[0].shares == ()
    assert keep_fastest([fast]) == [fast]


class FastInTwos(FakeEngine):
    """An engine on which four parts take half of the sum of their times, when run whole."""

    def compare(self, divisions: Any, *arguments: Any, **options: Any) -> tuple[list[list[float]], bool]:
        times, is_busy = super().compare(divisions, *arguments, **options)
        hastened = [
            [ms * (0.5 if len(division.parts) == 4 else 1) for ms in runs]
            for division, runs in zip(divisions, times, strict=True)
        ]
        return hastened, is_busy


def test_shares_are_dropped_where_one_configuration_for_all_is_faster_run_whole(tmp_path: Path) -> None:
    limits = Limits(total=10 * MiB, exact=True)
    with Cache.open(tmp_path / "cache.sqlite") as cache:
        bench = Bench(cast(Engine, FastInTwos()), cache, Listener(), Exhaustive())
        predicted = optimize(bench, [kernel(3)], "power_of_two", limits, run=False)
        result = optimize(bench, [kernel(3)], "power_of_two", limits)
    # Predicted: 2×4 in 9 ms with 4 MiB, 4×2 in 10 ms with 2 MiB. Run whole, 4×2 takes 5 ms.
    (planned,) = to_plan(predicted).kernels
    assert [(count, str(share)) for count, share in planned.shares] == [(2, "2*4 HUNGRY"), (1, "4*2 HUNGRY")]
    (after,) = result.decisions
    assert [(s.kernel.count, str(s.divided)) for s in after.each] == [(3, "4*2 HUNGRY")]


def test_a_plan_keeps_the_shares_and_the_choice_for_all() -> None:
    plan = to_plan(decide_within(20 * MiB, kernel(3)))
    (planned,) = plan.kernels
    assert planned.chosen == LEAN
    assert planned.shares == ((2, HUNGRY), (1, LEAN))
    assert str(plan).startswith("mucudnn plan 1\n")
    assert Plan.parse(str(plan)) == plan
    (shown,) = ShownPlan(plan, Path("a.plan")).content()["kernels"]
    assert [(share["count"], share["workspace"]) for share in shown["shares"]] == [(2, 8 * MiB), (1, 0)]
    assert "<td>2 of them apart</td>" in plan._repr_html_()


def test_the_json_of_a_result_has_the_shares_and_their_total() -> None:
    written = to_json(decide_within(20 * MiB, kernel(3)))
    (shown,) = written["kernels"]
    assert shown["divided"]["workspace"] == 0
    assert [share["count"] for share in shown["shares"]] == [2, 1]
    assert [share["divided"]["time_ms"] for share in shown["shares"]] == [8, 16]
    assert written["total"]["apart"] == {
        "undivided_ms": 32, "divided_ms": 32, "speedup": 1, "workspace": 16 * MiB
    }  # fmt: skip
    without = to_json(decide_within(24 * MiB, kernel(3)))
    assert without["kernels"][0]["shares"] == []
    assert without["total"]["apart"] is None


@pytest.mark.parametrize(
    ("layers", "algorithms"),
    [
        (6, ["A", "A", "A", "B", "B", "C"]),  # a layer for each kernel
        (3, ["A", "B", "C"]),  # each layer runs twice: it takes the smaller one of its two kernels' shares
        (1, ["C"]),
        (4, ["C"] * 4),  # 6 kernels are not 4 equal parts: all layers take the least workspace
        (7, ["C"] * 7),  # some of these layers run other kernels, nobody knows which
    ],
)
def test_layers_get_shares_in_order_and_never_more_than_the_total(layers: int, algorithms: list[str]) -> None:
    a, b, c = (
        Configuration((MicroConfiguration(8, name, 1.0, workspace),))
        for name, workspace in (("A", 30), ("B", 20), ("C", 10))
    )
    planned = PlanKernel(kernel(6), 6, c, (c, b, a), shares=((3, a), (2, b), (1, c)))
    taken = [planned.share_of_layer(layer, layers) for layer in range(layers)]
    assert [configuration.parts[0].algorithm for configuration in taken] == algorithms

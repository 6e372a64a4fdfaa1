"""Under a total (WD), divisions compete with the best undivided algorithms that fit the same total."""

import math
import random
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any, cast

import pytest
from cached_rows import HERE
from fake_engine import FakeAlgorithm, FakeEngine
from optimizer_cases import run
from random_cases import cases

from mucudnn._native import parse_descriptor
from mucudnn.cli.decisions import Decided
from mucudnn.costs.records import SUCCESS, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.errors import NothingFitsError
from mucudnn.output.answers import show
from mucudnn.plans.decide import Decision, Limits, decide
from mucudnn.plans.result import Result, has_shares, split_shares, to_json, to_plan, total
from mucudnn.problems.kernels import Kernel

MiB = 2**20
SIZES = (1, 2, 4, 8)


def draw_table(random_: random.Random) -> CostTable:
    """Return costs of a few kernels, some of which occur several times."""
    measured = {}
    for index in range(random_.randint(1, 3)):
        problem = parse_descriptor(f"mb8_ic{index + 1}ih5_oc4_kh3")[0]
        kernel = Kernel(problem, "forward", f"layer{index}", random_.randint(1, 3))
        measured[kernel] = [
            Measurement(
                size, name, SUCCESS, random_.randint(0, 6 * size), time_ms=random_.uniform(1, 2) * size
            )
            for name in "ABC"
            for size in SIZES
        ]
    return CostTable(HERE, measured)


def fastest_undivided(costs: CostTable, budget: int, *, apart: bool) -> float | None:
    """Return the least time of the undivided algorithms within the total, found by trying all of them."""
    slots: list[tuple[int, list[Measurement]]] = []
    for kernel, rows in costs.measurements.items():
        whole = [row for row in rows if row.micro_batch == kernel.mini_batch]
        slots += repeat((1, whole), kernel.count) if apart else [(kernel.count, whole)]
    counts = [count for count, _ in slots]
    times = [
        sum(count * cast(float, row.time_ms) for count, row in zip(counts, choice, strict=True))
        for choice in product(*(whole for _, whole in slots))
        if sum(count * row.workspace for count, row in zip(counts, choice, strict=True)) <= budget
    ]
    return min(times, default=None)


def drawn_decisions(case: int) -> Iterator[tuple[CostTable, int, list[Decision]]]:
    random_ = random.Random(case)
    costs = draw_table(random_)
    for budget in random_.sample(range(150), 4):
        try:
            yield costs, budget, decide(costs, "power_of_two", Limits(total=budget, exact=True))
        except NothingFitsError:
            continue


@pytest.mark.parametrize("case", cases(60))
def test_the_undivided_time_is_the_least_within_the_same_total(case: int) -> None:
    for costs, budget, decisions in drawn_decisions(case):
        times, least = total(decisions), fastest_undivided(costs, budget, apart=False)
        assert times.undivided_ms == (None if least is None else pytest.approx(least))
        assert least is None or times.divided_ms <= least * (1 + 1e-9)
        result = Result(costs.machine, "power_of_two", Limits(total=budget), 0, tuple(decisions))
        if has_shares(result):
            times = total(split_shares(result).decisions)
            least = fastest_undivided(costs, budget, apart=True)
            assert times.undivided_ms == (None if least is None else pytest.approx(least))


@pytest.mark.parametrize("case", cases(60))
def test_every_fallback_fits_what_its_division_was_granted(case: int) -> None:
    for _, _, decisions in drawn_decisions(case):
        for decision in chain.from_iterable(decision.each for decision in decisions):
            if decision.fallback is not None:
                assert decision.fallback.workspace <= decision.divided.workspace


class Moody(FakeEngine):
    """An engine on which each configuration run whole takes a drawn multiple of the sum of its parts."""

    def __init__(self, case: int) -> None:
        random_ = random.Random(case)
        drawn = {
            (name, size): (random_.randint(0, 6), random_.uniform(1, 2)) for name in "ABC" for size in SIZES
        }
        super().__init__(
            {
                name: FakeAlgorithm(
                    lambda n, name=name: drawn[name, n][1] * n,  # type: ignore[misc]
                    lambda n, name=name: drawn[name, n][0] * n * MiB,  # type: ignore[misc]
                )
                for name in "ABC"
            }
        )
        self.case = case

    def compare(self, divisions: Any, *arguments: Any, **options: Any) -> tuple[list[list[float]], bool]:
        times, is_busy = super().compare(divisions, *arguments, **options)
        moods = (random.Random(f"{self.case} {division.parts}").uniform(0.7, 1.5) for division in divisions)
        return [[ms * mood for ms in runs] for runs, mood in zip(times, moods, strict=True)], is_busy


KERNELS = [
    Kernel(parse_descriptor(f"f32:mb{batch}_ic4ih5_oc4_kh3")[0], "forward", f"layer{batch}", count)
    for batch, count in ((8, 1), (4, 3), (2, 2))
]


def used(parts: Iterable[tuple[int, int]]) -> int:
    return sum(count * workspace for count, workspace in parts)


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
@pytest.mark.parametrize("case", cases(30))
def test_what_whole_runs_choose_fits_the_total_and_is_never_slower_than_undivided(
    tmp_path: Path, case: int, is_busy: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    optimize = partial(run, tmp_path / "cache.sqlite", kernels=KERNELS)
    engine = Moody(case)
    optimize(engine, limits=Limits(), run=False)  # measures on an idle machine
    engine.is_busy = is_busy
    for budget in (10 * MiB, 40 * MiB, 100 * MiB):
        try:
            result = optimize(engine, limits=Limits(total=budget, exact=True))
        except NothingFitsError:
            continue
        plan = to_plan(result)
        assert used((k.count, k.chosen.workspace) for k in plan.kernels) <= budget
        apart = ((k.shares or ((k.count, k.chosen),)) for k in plan.kernels)
        assert used((count, share.workspace) for shares in apart for count, share in shares) <= budget
        times = total(result.decisions)
        assert times.divided_ms <= (times.undivided_ms or math.inf) * (1 + 1e-9)
        written = to_json(result)["total"]
        assert (written["undivided_ms"] is None) == (written["speedup"] is None)
        show(*Decided(result, "network", (), "mucudnn plan show", notes=True).lines())
        assert "total" in capsys.readouterr().out

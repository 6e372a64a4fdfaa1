"""The race finds nearly the choice that measuring everything finds, with a fraction of the work."""

import random
import statistics
from collections.abc import Iterator

import pytest

from mucudnn.costs.records import STOCK, STOCK_SLICE, SUCCESS, Measurement
from mucudnn.measuring.race import Candidate, RaceGoal, hopeless_ms, next_candidate
from mucudnn.solver import Configuration, MicroConfiguration, desirable_set

Costs = dict[Candidate, float]  # ms
LIMITS = (0, 16, 64, 256, None)


def made_up_costs(seed: int) -> tuple[int, Costs]:
    """Return a mini-batch and the times of algorithms with fixed costs, costs per sample, and caches."""
    r = random.Random(seed)
    mini_batch = r.choice([8, 16, 32, 64, 256])
    sizes = [1 << exponent for exponent in range(mini_batch.bit_length())]
    costs = {}
    for number in range(r.randint(2, 9)):
        fixed, per_sample, beyond_caches = r.choice([0, 0.1, 0.5, 2]), r.uniform(1, 6), r.choice([0, 0, 0.3])
        knee, workspace, filter_ = r.choice(sizes), r.choice([0, 1, 4, 16, 64]), r.choice([0, 0, 3])
        for size in sizes:
            sample_ms = per_sample * (1 + beyond_caches * max(0, 1 - knee / size)) + fixed / size
            costs[Candidate(size, f"A{number}", workspace * size + filter_)] = size * sample_ms
    costs[Candidate(mini_batch, STOCK, 0)] = 4.0 * mini_batch
    costs |= {Candidate(size, STOCK_SLICE, 0): 4.2 * size for size in sizes[:-1]}
    return mini_batch, costs


def run(costs: Costs, race: RaceGoal) -> Iterator[Measurement]:
    left = [c for c in costs if race.limits[-1] is None or c.workspace <= race.limits[-1]]
    rows = list[Measurement]()
    while (candidate := next_candidate(left, rows, race)) is not None:
        left.remove(candidate)
        rows.append(row_of(candidate, costs[candidate]))
        yield rows[-1]


def row_of(candidate: Candidate, time_ms: float, status: str = SUCCESS) -> Measurement:
    size, algorithm, workspace = candidate
    return Measurement(size, algorithm, status, workspace, time_ms=time_ms)


def desirable(mini_batch: int, rows: list[Measurement]) -> list[Configuration]:
    parts = [MicroConfiguration(m.micro_batch, m.algorithm, m.time_ms or 0, m.workspace) for m in rows]
    return desirable_set(parts, mini_batch)


@pytest.mark.parametrize("limit", LIMITS)
def test_its_choice_is_nearly_the_best_for_a_few_runs_of_stock(limit: int | None) -> None:
    ratios, spent = [], []
    for seed in range(60):
        mini_batch, costs = made_up_costs(seed)
        rows = list(run(costs, RaceGoal(mini_batch, (limit,))))
        spent.append(sum(row.time_ms or 0 for row in rows) / (4.0 * mini_batch))
        best = [row_of(c, ms) for c, ms in costs.items() if limit is None or c.workspace <= limit]
        chosen, wanted = (desirable(mini_batch, measured)[-1].time_ms for measured in (rows, best))
        ratios.append(chosen / wanted)
    assert statistics.mean(ratios) < 1.02
    assert max(ratios) < 1.25
    assert statistics.mean(spent) < 4
    assert max(spent) < 8


def test_one_race_finds_choices_within_several_limits() -> None:
    for seed in range(20):
        mini_batch, costs = made_up_costs(seed)
        several = desirable(mini_batch, list(run(costs, RaceGoal(mini_batch, LIMITS))))
        for limit in LIMITS:
            alone = desirable(mini_batch, list(run(costs, RaceGoal(mini_batch, (limit,)))))[-1]
            within = [c.time_ms for c in several if limit is None or c.workspace <= limit]
            assert min(within) < 1.1 * alone.time_ms


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("compares", [False, True])
def test_a_process_that_finds_the_measurements_has_nothing_to_add(seed: int, compares: bool) -> None:
    mini_batch, costs = made_up_costs(seed)
    race = RaceGoal(mini_batch, LIMITS, compares=compares)
    rows = list(run(costs, race))
    measured = {(row.micro_batch, row.algorithm) for row in rows}
    left = [c for c in costs if (c.micro_batch, c.algorithm) not in measured]
    random.Random(seed).shuffle(rows)
    assert next_candidate(left, rows, race) is None


def test_an_algorithm_of_the_engine_is_measured_undivided_where_that_is_wanted() -> None:
    for seed in range(20):
        mini_batch, costs = made_up_costs(seed)
        rows = list(run(costs, RaceGoal(mini_batch, compares=True)))
        assert any(row.micro_batch == mini_batch and row.algorithm != STOCK for row in rows)


def test_stock_comes_first_and_undivided() -> None:
    mini_batch, costs = made_up_costs(2)
    assert next(run(costs, RaceGoal(mini_batch))).algorithm == STOCK


def test_slices_of_stock_are_tried_only_where_no_algorithm_is_far_ahead() -> None:
    stock = {
        Candidate(8, STOCK, 0): 80.0,
        **{Candidate(size, STOCK_SLICE, 0): 9.0 * size for size in (1, 2, 4)},
    }
    for sample_ms, wanted in ((3.0, False), (9.5, True)):
        costs = {**stock, **{Candidate(size, "A", 0): sample_ms * size for size in (1, 2, 4, 8)}}
        names = {row.algorithm for row in run(costs, RaceGoal(8))}
        assert (STOCK_SLICE in names) == wanted


def test_the_fixed_part_of_a_workspace_lets_an_algorithm_hope_for_larger_sizes() -> None:
    whole = {Candidate(16, STOCK, 0): 16.0}
    flat = {Candidate(size, "FLAT", 10 * size): 6.0 + 0.5 * size for size in (1, 2, 4, 8, 16)}
    transform = {Candidate(size, "TRANSFORM", 1000 + size): 6.0 + 0.5 * size for size in (1, 2, 4, 8, 16)}
    sizes = {c.micro_batch for c in whole | flat if c.algorithm == "FLAT"}
    assert {row.micro_batch for row in run(whole | flat, RaceGoal(16)) if row.algorithm == "FLAT"} < sizes
    rows = [row for row in run(whole | transform, RaceGoal(16)) if row.algorithm == "TRANSFORM"]
    assert rows[-1].micro_batch == 16


def test_an_algorithm_that_cannot_fill_its_workspace_in_time_is_not_begun() -> None:
    costs = {Candidate(4, STOCK, 0): 4.0, Candidate(4, "A", 10_000): 1.0}
    assert len(list(run(costs, RaceGoal(4, bytes_per_ms=3_000.0)))) == 2
    assert len(list(run(costs, RaceGoal(4, bytes_per_ms=2_000.0)))) == 1


def test_the_samples_that_the_best_size_leaves_over_get_a_size() -> None:
    costs = {Candidate(size, "A", size): 100.0 + size for size in (16, 20, 4)}
    rows = list(run(costs, RaceGoal(20, (16,))))
    assert sorted(row.micro_batch for row in rows) == [4, 16]


def test_a_race_that_takes_too_long_ends() -> None:
    costs = {Candidate(1, STOCK, 0): 1.0} | {Candidate(1, f"A{i}", i): 1.5 for i in range(60)}
    assert len(list(run(costs, RaceGoal(1)))) < 10


@pytest.mark.parametrize(("whole_ms", "algorithms"), [(60.0, 4), (101.0, 8)], ids=["short", "long"])
def test_a_long_run_is_made_once_and_leaves_the_budget_to_more_algorithms(
    whole_ms: float, algorithms: int
) -> None:
    costs = {Candidate(8, STOCK, 0): whole_ms}
    costs |= {Candidate(8, f"A{number}", number): 1.5 * whole_ms for number in range(20)}
    measured = [row for row in run(costs, RaceGoal(8)) if row.algorithm != STOCK]
    assert len(measured) == algorithms


def test_an_algorithm_that_fails_at_a_size_is_tried_at_another_one() -> None:
    candidates = [Candidate(size, "A", 0) for size in (1, 2, 4)]
    failed = row_of(Candidate(8, "A", 0), 0.0, status="CUDNN_STATUS_NOT_SUPPORTED")
    assert next_candidate(candidates, [failed], RaceGoal(8)) == candidates[0]


def test_a_candidate_is_dropped_only_for_one_with_no_more_workspace() -> None:
    rows = [row_of(Candidate(2, "LEAN", 0), 8.0), row_of(Candidate(2, "HUNGRY", 100), 2.0)]
    assert hopeless_ms(Candidate(4, "A", 50), rows) == pytest.approx(4 * 4.0 * 1.3)
    assert hopeless_ms(Candidate(4, "A", 100), rows) == pytest.approx(4 * 1.0 * 1.3)
    assert hopeless_ms(Candidate(4, "A", 50), rows[1:]) == float("inf")


def test_a_mini_batch_that_no_measured_sizes_add_up_to_is_measured_undivided() -> None:
    costs = {Candidate(size, "A", 0): 10.0 + size for size in (8, 16)} | {Candidate(17, "A", 0): 100.0}
    assert 17 in {row.micro_batch for row in run(costs, RaceGoal(17, (0,)))}


def test_on_a_gpu_algorithms_begin_in_the_order_of_the_heuristics() -> None:
    costs = {
        Candidate(size, name, need): 10.0 * size for name, need in (("A", 9), ("B", 0)) for size in (1, 2)
    }
    assert next(run(costs, RaceGoal(2))).algorithm == "B"
    assert next(run(costs, RaceGoal(2, is_on_gpu=True))).algorithm == "A"


def test_an_algorithm_that_is_known_undivided_alone_is_tried_in_slices() -> None:
    slices = [Candidate(size, "A", 0) for size in (1, 2, 4)]
    whole = row_of(Candidate(8, "A", 0), 8.0)
    assert next_candidate(slices, [whole], RaceGoal(8)) == slices[0]


def test_a_medium_size_is_tried_between_the_best_size_and_the_next_measured_one() -> None:
    costs = {
        Candidate(size, "A", 0): ms * size for size, ms in ((1, 1.0), (2, 1.0), (4, 0.7), (8, 0.9), (16, 1.0))
    }
    rows = [row_of(c, costs[c]) for c in (Candidate(1, "A", 0), Candidate(16, "A", 0))]
    left = [c for c in costs if c.micro_batch in (2, 4, 8)]
    assert next_candidate(left, rows, RaceGoal(16)) == Candidate(4, "A", 0)


def test_on_a_gpu_an_algorithm_begins_with_a_quarter_of_the_mini_batch() -> None:
    costs = {Candidate(size, "A", 0): 8.0 for size in (1, 2, 4, 8, 16)}
    assert next(run(costs, RaceGoal(16))).micro_batch == 1
    assert next(run(costs, RaceGoal(16, is_on_gpu=True))).micro_batch == 4


def test_on_a_gpu_without_stock_every_algorithm_is_measured_however_many_there_are() -> None:
    costs = {Candidate(1, f"A{i}", i): 1.5 for i in range(60)}
    assert len(list(run(costs, RaceGoal(1, is_on_gpu=True)))) == 60
    assert len(list(run(costs | {Candidate(1, STOCK, 0): 1.0}, RaceGoal(1, is_on_gpu=True)))) < 10


TILED = {
    Candidate(1, "SLOW", 400): 9.0,
    Candidate(1, "SLOW.tile=9", 90): 6.0,
    Candidate(1, "FAST", 800): 3.0,
    Candidate(1, "FAST.tile=2", 20): 4.0,
    Candidate(1, "FAST.tile=8", 80): 2.0,
    Candidate(1, "FAST.tile=40", 300): 2.5,
}


def test_an_algorithm_comes_before_its_tiles_and_longer_tiles_before_shorter_ones() -> None:
    """Measure no tiles of an algorithm that is far behind."""
    names = [row.algorithm for row in run(TILED, RaceGoal(1, compares=True))]
    assert names == ["SLOW", "FAST", "FAST.tile=40", "FAST.tile=8", "FAST.tile=2"]


def test_tiles_are_measured_where_the_algorithm_does_not_fit() -> None:
    names = [row.algorithm for row in run(TILED, RaceGoal(1, (100,), compares=True))]
    assert names == ["FAST.tile=8", "FAST.tile=2", "SLOW.tile=9"]


def test_an_algorithm_whose_tiles_are_fast_is_measured_undivided_for_comparison() -> None:
    race = RaceGoal(1, (100,), compares=True)
    rows = [row_of(candidate, ms) for candidate, ms in TILED.items() if candidate.workspace <= 100]
    rows.append(row_of(Candidate(1, "OTHER", 0), 12.0))
    left = [Candidate(1, "SLOW", 90), Candidate(1, "FAST", 95)]
    expensive = [row_of(Candidate(1, f"A{i}", 0), 12.0) for i in range(60)]  # they take the whole budget
    assert next_candidate(left, rows + expensive, race) == Candidate(1, "FAST", 95)

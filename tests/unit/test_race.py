"""The race finds nearly the choice that measuring everything finds, with a fraction of the work."""

import random
import statistics
from collections.abc import Iterator

import pytest

from mucudnn.costs.records import STOCK, STOCK_SLICE, SUCCESS, Measurement
from mucudnn.measuring.race import Candidate, next_candidate, rival_ms
from mucudnn.solver import Configuration, MicroConfiguration, desirable_set

Costs = dict[Candidate, float]  # ms


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
    return mini_batch, costs


def race(mini_batch: int, costs: Costs, *, every_size: bool = False) -> Iterator[Measurement]:
    left, rows = list(costs), list[Measurement]()
    while (found := next_candidate(left, rows, mini_batch, every_size=every_size)) is not None:
        left.remove(found)
        rows.append(row_of(found, costs[found]))
        yield rows[-1]


def row_of(candidate: Candidate, time_ms: float, status: str = SUCCESS) -> Measurement:
    size, algorithm, workspace = candidate
    return Measurement(size, algorithm, status, workspace, median_ms=time_ms)


def desirable(mini_batch: int, rows: list[Measurement]) -> list[Configuration]:
    parts = [MicroConfiguration(m.micro_batch, m.algorithm, m.median_ms or 0, m.workspace) for m in rows]
    return desirable_set(parts, mini_batch)


def test_its_choice_is_nearly_the_best_under_every_limit_for_a_fraction_of_the_time() -> None:
    ratios, spent = [], []
    for seed in range(150):
        mini_batch, costs = made_up_costs(seed)
        rows = list(race(mini_batch, costs))
        spent.append(sum(row.median_ms or 0 for row in rows) / sum(costs.values()))
        raced = desirable(mini_batch, rows)
        for best in desirable(mini_batch, [row_of(c, ms) for c, ms in costs.items()]):
            fitting = [c.time_ms for c in raced if c.workspace <= best.workspace]
            assert fitting, "what fits the limit has no rival with less workspace, so it stays in the race"
            ratios.append(min(fitting) / best.time_ms)
    assert statistics.mean(ratios) < 1.02
    assert statistics.median(spent) < 1 / 3


@pytest.mark.parametrize("seed", range(5))
def test_a_process_that_finds_the_measurements_has_nothing_to_add(seed: int) -> None:
    mini_batch, costs = made_up_costs(seed)
    rows = list(race(mini_batch, costs))
    measured = {(row.micro_batch, row.algorithm) for row in rows}
    left = [c for c in costs if (c.micro_batch, c.algorithm) not in measured]
    assert next_candidate(left, rows, mini_batch, every_size=False) is None


def test_every_size_is_measured_where_that_is_wanted() -> None:
    mini_batch, costs = made_up_costs(1)
    rows = list(race(mini_batch, costs, every_size=True))
    assert {row.micro_batch for row in rows} == {c.micro_batch for c in costs}


def test_some_algorithm_is_measured_undivided() -> None:
    for seed in range(20):
        mini_batch, costs = made_up_costs(seed)
        assert mini_batch in {row.micro_batch for row in race(mini_batch, costs)}


def test_stock_comes_first_and_undivided() -> None:
    mini_batch, costs = made_up_costs(2)
    costs |= {Candidate(1 << n, STOCK_SLICE, 0): 1.0 * (1 << n) for n in range(mini_batch.bit_length() - 1)}
    costs[Candidate(mini_batch, STOCK, 0)] = 0.5 * mini_batch
    names = [row.algorithm for row in race(mini_batch, costs)]
    assert names[0] == STOCK
    stock = [name in (STOCK, STOCK_SLICE) for name in names]
    assert stock == sorted(stock, reverse=True)


def test_an_algorithm_that_fails_is_left_alone() -> None:
    candidates = [Candidate(size, "A", 0) for size in (1, 2, 4)]
    failed = row_of(Candidate(8, "A", 0), 0.0, status="CUDNN_STATUS_NOT_SUPPORTED")
    rows = [failed]
    found = next_candidate(candidates, rows, 8, every_size=False)
    assert found == candidates[0]


def test_the_time_that_puts_a_candidate_out_of_the_race_is_that_of_rivals_with_no_more_workspace() -> None:
    rows = [row_of(Candidate(2, "LEAN", 0), 8.0), row_of(Candidate(2, "HUNGRY", 100), 2.0)]
    assert rival_ms(Candidate(4, "A", 50), rows) == pytest.approx(4 * 4.0 * 1.4)
    assert rival_ms(Candidate(4, "A", 100), rows) == pytest.approx(4 * 1.0 * 1.4)
    assert rival_ms(Candidate(4, "A", 50), rows[1:]) == float("inf")

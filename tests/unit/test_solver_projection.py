"""The projection of a training's time follows the paper's equations to the last digits."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn.solver.devices.projection import DataParallel, project

SAMPLES, BATCH = 1_281_167, 64

positive = st.floats(0.1, 1e4)
tables = st.lists(st.tuples(positive, positive), min_size=1, max_size=6).map(
    lambda rows: [DataParallel(2**i, step, epochs) for i, (step, epochs) in enumerate(rows)]
)
speedups = st.dictionaries(st.sampled_from([2, 4, 8]), st.floats(0.5, 8.0), max_size=3)


def training_ms(row: DataParallel, faster: float = 1.0) -> float:
    """Return T = steps per epoch x step time x epochs."""
    return SAMPLES / (row.devices * BATCH) * (row.step_ms / faster) * row.epochs


@given(tables, speedups)
def test_each_strategys_speedup_is_the_ratio_of_the_trainings_times(
    table: list[DataParallel], model: dict[int, float]
) -> None:
    rows = {row.devices: row for row in table}
    for alone, hybrid in project(table, model):
        for strategy in (alone, hybrid):
            if strategy is None:
                continue
            faster = model[strategy.devices_each] if strategy.devices_each > 1 else 1.0
            expected = training_ms(rows[1]) / training_ms(rows[strategy.replicas], faster)
            assert math.isclose(strategy.speedup, expected, rel_tol=1e-12)


@given(tables, speedups)
def test_the_hybrid_of_a_number_of_devices_is_the_best_that_the_table_allows(
    table: list[DataParallel], model: dict[int, float]
) -> None:
    rows = {row.devices for row in table}
    for alone, hybrid in project(table, model):
        strategy = alone or hybrid
        assert strategy is not None
        ways = [m for m in model if strategy.devices % m == 0 and strategy.devices // m in rows]
        assert (hybrid is None) == (not ways)
        assert (alone is None) == (strategy.devices not in rows)


@pytest.mark.parametrize(
    ("rows", "model", "message"),
    [
        ([DataParallel(2, 1, 1)], {}, "no row for 1 device"),
        ([DataParallel(1, 1, 1), DataParallel(1, 2, 1)], {}, "two rows for one number"),
        ([DataParallel(1, 1, 1)], {1: 1.0}, "given for 1 devices of a replica"),
        ([DataParallel(1, 1, 1)], {2: 0.0}, "the speedup of 2 devices is 0"),
    ],
)
def test_a_wrong_table_is_refused(rows: list[DataParallel], model: dict[int, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        project(rows, model)


@pytest.mark.parametrize("figures", [(0, 1.0, 1.0), (1, -1.0, 1.0), (1, 1.0, math.inf)])
def test_wrong_figures_are_refused(figures: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match="must be above 0 and finite"):
        DataParallel(*figures)

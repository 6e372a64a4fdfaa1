"""The drop-in's race, played on recorded measurements, chooses as well as measuring everything does."""

import pytest

from bench.suites.core.race import (
    ENGINES,
    LIMITS,
    TABLES,
    drop_in_race,
    drop_in_records,
    made_up_engines,
    read_tables,
)

LIMIT = LIMITS["64 MiB"]

SHARES = {"8 MiB": 0.95, "64 MiB": 0.85, "none": 0.7}  # the most that is measured, in all candidates


@pytest.mark.parametrize("network", ["resnet18-16", "vgg11-16"])
def test_its_choices_on_recorded_times_are_within_2_percent_of_the_best(network: str) -> None:
    tables = read_tables(TABLES / f"{network}.jsonl.gz")
    for limit_name, limit in LIMITS.items():
        kernels = [costs for table in tables if (costs := table.without_stock(limit)) is not None]
        for record in drop_in_records(network, kernels, limit):
            assert record.value <= (1.02 if "choice" in record.metric else SHARES[limit_name]), record


def test_it_measures_each_engine_of_a_gpu_once_and_few_again() -> None:
    kernels = [made_up_engines(seed) for seed in range(8)]
    for record in drop_in_records("GPU", kernels, LIMIT, ("graph",)):
        assert record.value <= (1.02 if "choice" in record.metric else 0.25), record
    for costs in kernels:
        measured = drop_in_race(costs, LIMIT, costs.fastest)
        assert len(measured) < 2 * ENGINES


def test_it_measures_the_programs_own_engine_first() -> None:
    costs = made_up_engines(1)
    own = costs.undivided[-1]
    assert next(iter(drop_in_race(costs, LIMIT, own))) == (costs.mini_batch, own)

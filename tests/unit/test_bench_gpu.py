"""`python -m bench run gpu` keeps each record that it measures, and its summary shows them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.lib.record import Record, read
from bench.suites.gpu.run import MOST_FAILURES, Case, Run, record_outcome
from bench.suites.gpu.setting import HOST
from bench.suites.gpu.summary import latest, summary


def case(name: str, value: float = 1.0) -> Case:
    return Case("theme", name, lambda: [Record("theme", name, "time", value, "ms")])


def failing(name: str) -> Case:
    def measure() -> Iterator[Record]:
        raise MemoryError("no room\nfor that")

    return Case("theme", name, measure)


def measured(folder: Path, *cases: Case, seconds: float = 60) -> list[Record]:
    with Run(folder, HOST, seconds) as run:
        run.measure(iter(cases))
        return [record for _, record in read(run.records)]


def test_repeated_failures_end_a_part(tmp_path: Path) -> None:
    names = [f"{number}" for number in range(2 * MOST_FAILURES)]
    with pytest.raises(SystemExit, match="failures in a row"):
        measured(tmp_path, *map(failing, names))
    with_others = [failing(name) if int(name) % 2 else case(name) for name in names]
    assert len(measured(tmp_path, *with_others)) == MOST_FAILURES + len(names)


def test_a_part_that_later_succeeds_is_no_longer_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "gpu.jsonl"
    record_outcome(path, "cliff", 2.0, "exit code -11")
    assert "| part | cliff | exit code -11 |" in summary("a device", {}, latest(read_records(path)))
    record_outcome(path, "cliff", 60.0, "")
    assert "exit code" not in summary("a device", {}, latest(read_records(path)))


def read_records(path: Path) -> list[Record]:
    return [record for _, record in read(path)]


def test_nothing_starts_after_the_time_limit(tmp_path: Path) -> None:
    assert measured(tmp_path, case("a"), seconds=0) == []

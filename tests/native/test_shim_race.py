"""Online, the drop-in races: it measures what can be chosen, and marks the times as those of a race."""

from __future__ import annotations

from pathlib import Path

import pytest
from graph_numbers import LEGACY_NUMBERS
from reference import PASSES
from shim_cases import ENUMERATORS, case, check_results
from shim_journal import edit_rows, journal_in, set_times, without_knobs
from shim_modes import measurements, run_online
from shim_problems import GRAPH_PROBLEM, LEGACY_PROBLEM

from mucudnn._native import parse_journal
from mucudnn.costs.journal import rows_of
from mucudnn.costs.records import RACED
from mucudnn.costs.schema import MEASUREMENT

PROBLEMS = {"graph": GRAPH_PROBLEM, "legacy": LEGACY_PROBLEM}
HABITS = {"graph": "graph", "legacy": "get"}
RACE = {"MUCUDNN_MEASURING": "race"}
UNSET = {"MUCUDNN_MEASURING": ""}
FAST, MARK = "IMPLICIT_GEMM", "\nmeasuring race\n"


def with_few_rows(folder: Path) -> int:
    """Remove every row of the journal but those that a race needs. Return the number of removed rows.

    One algorithm is a hundred times as fast as the others, at each size alike. The race knows its times at
    all sizes, and those of the others at one sample. The others stay at the whole mini-batch too, since any
    may be a caller's.
    """
    set_times(folder, lambda size, name: size * (1.0 if name == FAST else 100.0))
    removed = 0

    def kept(size: int, algorithm: str, line: str) -> str:
        nonlocal removed
        if size in (1, 7) or without_knobs(algorithm) == FAST:
            return line
        removed += 1
        return ""

    edit_rows(folder, kept)
    return removed


@pytest.mark.parametrize("api", PROBLEMS)
def test_what_cannot_be_chosen_is_measured_by_a_thorough_program_alone(api: str, tmp_path: Path) -> None:
    convolution = case(PROBLEMS[api], "forward", HABITS[api])
    run_online(tmp_path, convolution)
    removed = with_few_rows(tmp_path)
    assert removed > 0
    assert measurements(run_online(tmp_path, convolution, **RACE)) == 0
    assert measurements(run_online(tmp_path, convolution)) == removed


@pytest.mark.parametrize("api", PROBLEMS)
def test_a_race_is_the_default_and_a_later_process_ends_it_without_measuring(
    api: str, tmp_path: Path
) -> None:
    cases = [case(PROBLEMS[api], pass_, HABITS[api]) for pass_ in PASSES]
    first = run_online(tmp_path, *cases, **UNSET)
    journal = journal_in(tmp_path).read_bytes()
    second = run_online(tmp_path, *cases, **RACE)
    assert (measurements(first) > 0, measurements(second)) == (True, 0)
    assert journal_in(tmp_path).read_bytes() == journal
    numbers = [list((LEGACY_NUMBERS if api == "graph" else ENUMERATORS)[pass_].values()) for pass_ in PASSES]
    for results in (first, second):
        check_results(cases, results, numbers, tmp_path)


def test_times_of_a_race_are_marked_and_a_thorough_program_measures_anew(tmp_path: Path) -> None:
    convolution = case(LEGACY_PROBLEM, "forward")
    raced = measurements(run_online(tmp_path, convolution, **RACE))
    text = journal_in(tmp_path).read_text()
    assert text.count(MARK) == text.count("mucudnn plan ") > 0
    rows = [row for table, row in rows_of(text) if table == MEASUREMENT]
    assert [row["notes"].split()[-1] for row in rows] == [RACED] * raced
    thorough = measurements(run_online(tmp_path, convolution))
    assert thorough >= raced
    added = journal_in(tmp_path).read_text().removeprefix(text)
    assert MARK not in added
    assert not any(RACED in row["notes"] for table, row in rows_of(added) if table == MEASUREMENT)
    assert measurements(run_online(tmp_path, convolution)) == 0


def test_a_race_believes_the_times_of_a_thorough_program(tmp_path: Path) -> None:
    cases = [case(GRAPH_PROBLEM, pass_, "graph") for pass_ in PASSES]
    run_online(tmp_path, *cases)
    assert measurements(run_online(tmp_path, *cases, **RACE)) == 0


@pytest.mark.parametrize("pass_", PASSES)
def test_each_programs_own_engine_is_measured_undivided_however_slow_it_is(
    pass_: str, tmp_path: Path
) -> None:
    cases = [case(GRAPH_PROBLEM, pass_, "graph", engine=number) for number in LEGACY_NUMBERS[pass_].values()]
    results = run_online(tmp_path, *cases, **RACE)
    assert "not measured" not in results.stderr
    measured = {
        name
        for _, rows, _ in parse_journal(journal_in(tmp_path).read_text())
        for problem, _, name, *_ in rows
        if problem.mini_batch == 7
    }
    assert measured >= {f"eng{number}" for number in LEGACY_NUMBERS[pass_].values()}


def test_without_a_limit_nothing_is_measured_above_the_callers_own_workspace(tmp_path: Path) -> None:
    run_online(
        tmp_path, case(GRAPH_PROBLEM, "forward", "graph", engine=0), **RACE, MUCUDNN_WORKSPACE_LIMIT=""
    )
    documents = parse_journal(journal_in(tmp_path).read_text())
    assert {workspace for _, rows, _ in documents for *_, workspace, _, _, _, _ in rows} == {0}

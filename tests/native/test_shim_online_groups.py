"""Online, the drop-in divides channels too, where an algorithm does not fit the limit for few samples."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from graph_numbers import LEGACY_NUMBERS
from reference import PASSES
from shim_cases import ENUMERATORS, Ran, case, check_results
from shim_journal import journal_in
from shim_modes import measurements, run_online

PROBLEM = "f32:nchw:default:g1mb2_ic64ih10iw10_oc64oh10ow10_kh3kw3_sh1sw1_ph1pw1_dh0dw0"
LAST = PROBLEM.replace("nchw", "nhwc")
# Between Winograd's workspace for one sample of a half and of all channels. A half with its copies fits, too.
LIMIT = "768KiB"
HABITS = {"get": {}, "graph": {"repeat": 2}}


def cases_of(habit: str, problem: str) -> list[dict[str, Any]]:
    return [case(problem, pass_, habit, **HABITS[habit]) for pass_ in PASSES]


def check(cases: list[dict[str, Any]], results: Ran, folder: Path) -> None:
    numbers = LEGACY_NUMBERS if cases[0]["habit"] == "graph" else ENUMERATORS
    check_results(
        cases, results, [list(numbers[convolution["pass_"]].values()) for convolution in cases], folder
    )


def edit(folder: Path, time: Callable[[str], float], line: str) -> None:
    """Replace the times in some lines of the journal by those for the kernel that they belong to."""
    kernel, lines = "", []
    for text in journal_in(folder).read_text().splitlines():
        kernel = text if text.startswith("kernel ") else kernel
        if text.startswith(line):
            text = re.sub(r"(\d\*\d+:[^: ]+:|^measured [^: ]+:)[^:]+:", rf"\g<1>{time(kernel)}:", text)
        lines.append(text + "\n")
    journal_in(folder).write_text("".join(lines))


def forget_groups(folder: Path) -> None:
    """Remove the times of convolutions that ran in groups of channels from the drop-in's journal."""
    lines = journal_in(folder).read_text().splitlines(keepends=True)
    journal_in(folder).write_text("".join(line for line in lines if not line.startswith("groups ")))


def is_whole(kernel: str) -> bool:
    return "_ic64" in kernel and "_oc64" in kernel


@pytest.mark.parametrize(
    ("habit", "problem"),
    [("get", LAST), ("graph", PROBLEM)],
    ids=["get, channels last", "graph"],
)
def test_groups_run_where_whole_runs_found_them_faster_and_later_processes_measure_nothing(
    habit: str, problem: str, tmp_path: Path
) -> None:
    cases = cases_of(habit, problem)
    limit = {"MUCUDNN_WORKSPACE_LIMIT": LIMIT}
    first = run_online(tmp_path, *cases, **limit)
    assert all(facts["workspace"] <= 768 * 1024 for facts in first.facts)

    forget_groups(tmp_path)  # the first run adds some if the true times of groups are promising
    edit(tmp_path, lambda kernel: 1000.0 if is_whole(kernel) else 1.0, "measured ")
    second = run_online(tmp_path, *cases, **limit)  # groups are predicted to win, and are run whole
    assert measurements(second) == 0
    assert second.stderr.count("running ") >= len(PASSES)

    edit(tmp_path, lambda _: 0.001, "groups ")
    third = run_online(tmp_path, *cases, **limit)
    assert "running" not in third.stderr
    assert measurements(third) == 0
    runs = sum(convolution.get("repeat", 1) for convolution in cases)
    assert third.summary == f"{runs} of {runs} convolutions divided"
    assert len(re.findall(r"\d\*(32|16) \(", third.stderr)) >= len(PASSES)
    assert all(facts["workspace"] <= 768 * 1024 for facts in third.facts)
    check(cases, third, tmp_path)

    edit(tmp_path, lambda _: 9000.0, "groups ")
    fourth = run_online(tmp_path, *cases, **limit)  # the whole runs found the groups slower
    assert measurements(fourth) == 0
    assert not re.findall(r"\d\*(32|16) \(", fourth.stderr)


@pytest.mark.parametrize(
    "variables",
    [
        {"MUCUDNN_WORKSPACE_LIMIT": "none"},
        {"MUCUDNN_WORKSPACE_LIMIT": "64MiB"},
        {"MUCUDNN_WORKSPACE_LIMIT": LIMIT, "MUCUDNN_BATCH_POLICY": "undivided"},
    ],
    ids=["no limit", "all fits", "undivided"],
)
def test_groups_are_not_measured_where_nothing_is_to_be_gained(
    variables: dict[str, str], tmp_path: Path
) -> None:
    run_online(tmp_path, case(PROBLEM, "forward"), **variables)
    assert "oc64" in journal_in(tmp_path).read_text()
    assert "oc32" not in journal_in(tmp_path).read_text()

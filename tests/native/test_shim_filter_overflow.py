"""A program whose fp16 filter gradient overflows in parts gets the same result with and without the drop-in.

The values are those of test_filter_overflow.py, through both APIs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shim_cases
from programs import environment, run
from shim_cases import Ran, case, check_results, identity, problem_of, run_alone, run_under_shim

from mucudnn._native import Engine, format_plan, parse_descriptor

GRADIENT = "backward_filter"
# With stride 2 the host engine has one algorithm, so that a program's own choice is the same in each run.
PROBLEM = str(parse_descriptor("f16:mb8_ic3ih12_oc4_kh3_sh2_ph1")[0])
BF16 = str(parse_descriptor("bf16:mb8_ic3ih12_oc4_kh3_sh2_ph1")[0])
HABITS = ("get", "find", "find_ex", "graph")
REFUSED = "a filter gradient in f16 in {} slices is refused: the sum of a slice may overflow"
HALVES, QUARTERS, ONES, WHOLE = ([(8 // n, "ALGO_1")] * n for n in (2, 4, 8, 1))


def gradient(habit: str, problem: str = PROBLEM, largest: float = 4e5) -> dict[str, Any]:
    return case(problem, GRADIENT, habit, cancelling=largest)


def fixed(problem: str = PROBLEM, largest: float = 4e5) -> dict[str, Any]:
    return {**gradient("fixed", problem, largest), "algorithm": 1, "workspace": shim_cases.ROOMY}


def write_journal(engine: Engine, cache: Path, descriptor: str) -> None:
    """Write a journal in which small micro-batches are fastest."""
    rows = []
    for size in (1, 2, 4, 8):
        part = [(size, "ALGO_1", float(size**2), 0)]
        problem = problem_of({"problem": descriptor}).replace(mini_batch=size)
        rows.append((problem, GRADIENT, 1, part, [part], [], []))
    header = {**identity(engine), "threads": "1"}
    cache.with_name(cache.name + ".journal").write_text(format_plan(header, rows))


def check_own(cases: list[dict[str, Any]], results: Ran, folder: Path) -> None:
    """Check that the program gets the same numbers as without the drop-in, all of them finite."""
    alone = run_alone(cases, folder)
    for actual, expected, facts in zip(results.outputs, alone.outputs, results.facts, strict=True):
        assert facts["statuses"] == [0]
        assert np.isfinite(actual).all()
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("others", [[], [WHOLE]], ids=["divided alone", "undivided too"])
@pytest.mark.parametrize("chosen", [HALVES, ONES], ids=["halves", "ones"])
def test_a_plan_that_divides_such_a_gradient_is_not_followed(
    chosen: list[tuple[int, str]], others: list[list[tuple[int, str]]], engine: Engine, tmp_path: Path
) -> None:
    plan = shim_cases.write_plan(engine, tmp_path / "old.plan", {(PROBLEM, GRADIENT): [chosen, *others]})
    cases = [*map(gradient, HABITS), fixed()]
    variables = {"MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan)}
    results = run_under_shim(cases, tmp_path, **variables)
    check_own(cases, results, tmp_path)
    assert results.summary.startswith(f"0 of {len(cases)} convolutions divided")
    quiet = run_under_shim(cases[:1], tmp_path, MUCUDNN_LOG="warning", **variables)
    assert len(quiet.warnings) == 1
    assert REFUSED.format(len(chosen)) in quiet.warnings[0]


@pytest.mark.parametrize("limit", ["none", "0", "64KiB", ""])
def test_what_was_measured_before_does_not_divide_it_either(
    limit: str, engine: Engine, tmp_path: Path
) -> None:
    cache = tmp_path / "cache.sqlite"
    write_journal(engine, cache, PROBLEM)
    cases = [*map(gradient, HABITS), fixed()]
    variables = {"MUCUDNN_MODE": "online", "MUCUDNN_CACHE": str(cache), "MUCUDNN_WORKSPACE_LIMIT": limit}
    results = run_under_shim(cases, tmp_path, **variables)
    check_own(cases, results, tmp_path)
    assert results.summary.startswith(f"0 of {len(cases)} convolutions divided")


@pytest.mark.parametrize("habit", HABITS)
def test_gradients_in_bf16_are_divided_near_the_end_of_its_range(
    habit: str, engine: Engine, tmp_path: Path
) -> None:
    cases = [gradient(habit, BF16, 2.5e38)]
    for parts in (HALVES, QUARTERS):
        plan = shim_cases.write_plan(engine, tmp_path / "bf16.plan", {(BF16, GRADIENT): [parts]})
        results = run_under_shim(cases, tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan))
        assert results.summary == "1 of 1 convolutions divided"
        assert np.isfinite(results.outputs[0]).all()
        check_results(cases, results, [[1]], tmp_path)


def test_the_command_line_says_which_kernel_of_a_plan_does_not_hold(engine: Engine, tmp_path: Path) -> None:
    plan = shim_cases.write_plan(engine, tmp_path / "old.plan", {(PROBLEM, GRADIENT): [HALVES]}, threads="1")
    ran = run(
        sys.executable, "-m", "mucudnn", "plan", "verify", plan, "--no-run",
        **environment(MUCUDNN_LIBRARY="host"),
    )  # fmt: skip
    assert ran.returncode == 1
    assert f"mb8_ic3ih12_oc4_kh3_sh2_ph1: {REFUSED.format(2)}" in " ".join(ran.stdout.split())
    assert "1 of the plan's 1 kernels do not hold any more" in " ".join(ran.stderr.split())

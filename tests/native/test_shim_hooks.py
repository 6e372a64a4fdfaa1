"""Every hooked function follows a plan, and its result is as exact as that of an undivided call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import host_abi
import pytest
import shim_cases
from reference import PASSES
from shim_cases import ENUMERATORS, algorithms, case, check_results, problem_of, run_alone, run_under_shim

from mucudnn._native import Engine
from mucudnn.problems.kernels import Kernel

HOOKS = re.findall(
    r"^HOOK\((cudnn\w*Convolution\w+)\)",
    (host_abi.ABI.parents[1] / "shim" / "entry" / "exports.def").read_text(),
    re.M,
)
SMALL = "f32:nchw:default:mb7_ic4ih12_oc6_kh3_ph1"
PASS_OF = {"Forward": "forward", "BackwardData": "backward_data", "BackwardFilter": "backward_filter"}


def small_case(hook: str) -> dict[str, Any]:
    """Return a case that calls the function and uses its answer."""
    match = re.fullmatch(r"cudnn(Get|Find|)Convolution(BiasActivation|)(Forward|Backward\w+?)"
                         r"(Algorithm_v7|Algorithm|AlgorithmEx|WorkspaceSize|)", hook)  # fmt: skip
    assert match, hook
    verb, fused, name, what = match.groups()
    habit = {"Find": "find", "": "get", "Get": "get"}[verb] + ("_ex" if what == "AlgorithmEx" else "")
    more = {"fused": True, "alpha": 0.5, "beta": 0.25} if fused else {}
    return case(SMALL, PASS_OF[name], habit, **more)


def dividing_plan(engine: Engine, path: Path, pass_: str) -> tuple[Path, int]:
    """Write a plan of three micro-batches by the last algorithm. Return its path and its workspace."""
    problem = problem_of(case(SMALL, pass_))
    name = algorithms(engine, problem, pass_)[-1]
    parts = [(3, name), (3, name), (1, name)]
    candidates = engine.enumerate(Kernel(problem, pass_).at(3))
    workspace = next(c.workspace for c in candidates if c.algorithm == name)
    return shim_cases.write_plan(engine, path, {(SMALL, pass_): [parts]}), workspace


@pytest.mark.parametrize("hook", HOOKS)
def test_a_hooked_function_answers_and_runs_by_the_plan(hook: str, engine: Engine, tmp_path: Path) -> None:
    convolution = small_case(hook)
    plan, workspace = dividing_plan(engine, tmp_path / "small.plan", convolution["pass_"])
    results = run_under_shim([convolution], tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan))
    facts, alone = results.facts[0], run_alone([convolution], tmp_path).facts[0]
    assert facts["workspace"] == workspace
    assert results.summary == "1 of 1 convolutions divided"
    first, *others = facts["answers"]
    assert first[1:5] == [0, 7.0, workspace, 1], "success, milliseconds, bytes, deterministic"
    assert first[0] == others[0][0], "the answer names the algorithm of the library's first answer"
    assert [answer[0] for answer in sorted(others)] == [answer[0] for answer in sorted(alone["answers"])]
    used = list(ENUMERATORS[convolution["pass_"]].values())
    check_results([convolution], results, [used], tmp_path)


def test_a_caller_who_passes_less_than_it_was_told_gets_the_best_that_fits(
    engine: Engine, tmp_path: Path
) -> None:
    problem = problem_of(case(SMALL, "forward"))
    quick, modest = [(4, "WINOGRAD_NONFUSED"), (3, "WINOGRAD_NONFUSED")], [(7, "GEMM")]
    plan = shim_cases.write_plan(engine, tmp_path / "small.plan", {(SMALL, "forward"): [quick, modest]})
    need = next(c.workspace for c in engine.enumerate(Kernel(problem, "forward")) if c.algorithm == "GEMM")
    habits = {"habit": "fixed", "algorithm": 0}
    told = case(SMALL, "forward")
    cases = [
        told,
        case(SMALL, "forward", **habits, workspace=need),
        case(SMALL, "forward", **habits, workspace=need - 1),
    ]
    results = run_under_shim(cases, tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan))
    assert results.facts[0]["workspace"] > need
    assert results.summary == (
        "1 of 3 convolutions divided, 1 by a faster algorithm, "
        "1 passed through (nothing within the workspace)"
    )
    check_results(cases, results, [[7], [2], [0]], tmp_path)


@pytest.mark.parametrize("pass_", PASSES)
def test_a_division_rescues_a_call_that_cannot_run_in_the_memory_given(
    pass_: str, engine: Engine, tmp_path: Path
) -> None:
    hungry = next(ENUMERATORS[pass_][name] for name in ("GEMM", "ALGO_0") if name in ENUMERATORS[pass_])
    lean = next(name for name in ("IMPLICIT_GEMM", "ALGO_1") if name in ENUMERATORS[pass_])
    plan = shim_cases.write_plan(engine, tmp_path / "small.plan", {(SMALL, pass_): [[(4, lean), (3, lean)]]})
    cases = [case(SMALL, pass_, "fixed", algorithm=hungry, workspace=0)]
    assert run_alone(cases, tmp_path).facts[0]["statuses"] == [host_abi.BAD_PARAM]
    results = run_under_shim(cases, tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan))
    check_results(cases, results, [[ENUMERATORS[pass_][lean]]], tmp_path)


def test_without_a_plan_for_it_a_convolution_passes_through(engine: Engine, tmp_path: Path) -> None:
    plan = shim_cases.write_plan(
        engine, tmp_path / "other.plan", {(SMALL, "backward_data"): [[(7, "ALGO_1")]]}
    )
    cases = [case(SMALL, "forward", habit) for habit in ("get", "find_ex", "fixed")]
    results = run_under_shim(cases, tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan))
    assert results.summary == "0 of 3 convolutions divided, 3 passed through (not in the plan)"
    assert len(results.facts[0]["answers"]) == len(run_alone(cases, tmp_path).facts[0]["answers"])

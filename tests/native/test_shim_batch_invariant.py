"""With MUCUDNN_BATCH_INVARIANT=1 the drop-in gives a sample the same bits in each mini-batch, or says so."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from accepting_library import build_accepting_library
from graph_numbers import LEGACY_NUMBERS
from shim_cases import ROOMY, Ran, case, check_results, problem_of, run_under_shim, write_plan
from shim_problems import GRAPH_PROBLEM, LEGACY_PROBLEM, SHAPES

from mucudnn._native import Engine

OF = 9
PARTS = ((9, 0), (1, 0), (1, 8), (2, 3), (5, 4), (8, 1))  # (number of samples, index of the first)
COVERED = ("forward", "backward_data")
# More channels than are summed in one order everywhere, and tiny images: GEMM varies on these.
VARYING = ("ic700ih4_oc6_kh3_ph1", "ic40ih9_oc24_kh1", "ic3ih21_oc16_kh7_sh2_ph3")
NOT_KEPT = "MUCUDNN_BATCH_INVARIANT=1 is not kept"


def not_kept(reason: str) -> str:
    return f"mucudnn: {NOT_KEPT} ({reason}): the bits of such results may depend on the mini-batch"


def run_invariant(cases: list[dict[str, Any]], folder: Path, **environment: str) -> Ran:
    variables = {
        "MUCUDNN_MODE": "online",
        "MUCUDNN_CACHE": str(folder / "cache.sqlite"),
        "MUCUDNN_BATCH_INVARIANT": "1",
        "MUCUDNN_LOG": "debug",
    }
    return run_under_shim(cases, folder, **{**variables, **environment})


def divided(body: str, pass_: str, habit: str, **more: Any) -> list[dict[str, Any]]:
    """Return cases that each compute some samples of one mini-batch."""
    cases = []
    for samples, first in PARTS:
        problem = problem_of({"problem": body.replace("mb_", f"mb{samples}_")})
        cases.append(case(problem, pass_, habit, first=first, of=OF, **more))
    return cases


def check_same_bits(cases: list[dict[str, Any]], results: Ran) -> None:
    """Check each case against the samples of the last whole mini-batch before it."""
    for convolution, output, facts in zip(cases, results.outputs, results.facts, strict=True):
        assert set(facts["statuses"]) == {0}, convolution
        assert np.isfinite(output).all()
        if len(output) == OF:
            whole = output
        np.testing.assert_array_equal(output, whole[convolution["first"] :][: len(output)], str(convolution))


@pytest.mark.parametrize("limit", ["", "none"])
@pytest.mark.parametrize("habit", ["get", "find_ex", "graph", "fixed"])
def test_a_sample_has_the_same_bits_in_each_mini_batch(habit: str, limit: str, tmp_path: Path) -> None:
    # A program that executes without a question brings the workspace of its own algorithm, which is none.
    if habit == "fixed" and limit:
        pytest.skip("such a program brings no workspace")
    cases = []
    for pass_, type_, layout, body in product(
        COVERED, ("f32", "f64", "f16", "bf16"), ("nchw", "nhwc"), SHAPES + VARYING
    ):
        algorithm = {"algorithm": int(pass_ == "backward_data")} if habit == "fixed" else {}
        cases += divided(f"{type_}:{layout}:default:mb_{body}", pass_, habit, **algorithm)
    results = run_invariant(cases, tmp_path, MUCUDNN_WORKSPACE_LIMIT=limit)
    assert NOT_KEPT not in results.stderr
    assert "measuring" not in results.stderr
    check_same_bits(cases, results)


@pytest.mark.parametrize("core", ["", "Haswell", "Prescott"])
@pytest.mark.parametrize("threads", ["1", "4"])
def test_factors_fused_calls_threads_and_older_processors_keep_the_bits(
    threads: str, core: str, tmp_path: Path
) -> None:
    cases = []
    for pass_, body in product(COVERED, SHAPES + VARYING):
        for habit in ("get", "graph"):
            cases += divided(f"f32:nchw:default:mb_{body}", pass_, habit, alpha=1.5, beta=0.5)
    for body in SHAPES[:2]:
        cases += divided(f"f32:nchw:default:mb_{body}", "forward", "get", fused=True, beta=0.5)
        cases += divided(f"f32:nchw:fma:mb_{body}+bias+relu", "forward", "graph")
    environment = {"OPENBLAS_CORETYPE": core} if core else {}
    results = run_invariant(cases, tmp_path, MUCUDNN_THREADS=threads, **environment)
    assert NOT_KEPT not in results.stderr
    check_same_bits(cases, results)


def test_engines_of_the_programs_choice_give_way_to_one_algorithm(tmp_path: Path) -> None:
    cases = [
        convolution
        for pass_ in COVERED
        for engine in LEGACY_NUMBERS[pass_].values()
        for convolution in divided(GRAPH_PROBLEM.replace("mb7_", "mb_"), pass_, "graph", engine=engine)
    ]
    results = run_invariant(cases, tmp_path)
    assert NOT_KEPT not in results.stderr
    whole = next(output for output in results.outputs if len(output) == OF)
    for convolution, output in zip(cases, results.outputs, strict=True):
        if convolution["pass_"] == "forward":
            np.testing.assert_array_equal(output, whole[convolution["first"] :][: len(output)])


def test_strict_results_are_exact_too(tmp_path: Path) -> None:
    cases = divided(LEGACY_PROBLEM.replace("mb7_", "mb_"), "forward", "get")
    results = run_invariant(cases, tmp_path, MUCUDNN_NUMERICS="strict", MUCUDNN_WORKSPACE_LIMIT="none")
    assert "WINOGRAD" not in results.stderr
    check_same_bits(cases, results)


def test_a_filter_gradient_is_measured_as_ever(tmp_path: Path) -> None:
    cases = [case(LEGACY_PROBLEM, "backward_filter")]
    results = run_invariant(cases, tmp_path)
    assert "measuring" in results.stderr
    assert NOT_KEPT not in results.stderr
    check_results(cases, results, [[0, 1, 2, 3]], tmp_path)


def test_what_cannot_be_kept_is_said_once(tmp_path: Path) -> None:
    # The limit allows Winograd, for which a program that never asks brings no workspace.
    winograd = problem_of({"problem": "f32:nchw:default:mb4_ic64ih28_oc64_kh3_ph1"})
    cases = [case(winograd, "forward", "fixed", repeat=3)] * 2
    limit = {"MUCUDNN_WORKSPACE_LIMIT": "none", "MUCUDNN_LOG": "warning"}
    results = run_invariant(cases, tmp_path, **limit)
    assert results.warnings == [not_kept("the program brings a workspace of 0 bytes")]
    library = str(build_accepting_library(tmp_path))
    twice = case(GRAPH_PROBLEM + "+add", "forward", "graph", chain="convolves_twice", repeat=2)
    results = run_invariant([twice, twice], tmp_path, MUCUDNN_LIBRARY=library, **limit)
    assert results.warnings == [not_kept("several convolutions in one graph")]


def test_a_plan_serves_filter_gradients_alone(engine: Engine, tmp_path: Path) -> None:
    kernels = {(LEGACY_PROBLEM, "forward"): [[(7, "WINOGRAD_NONFUSED")]]}
    plan = write_plan(engine, tmp_path / "small.plan", kernels)
    cases = divided(LEGACY_PROBLEM.replace("mb7_", "mb_"), "forward", "get", workspace=ROOMY)
    results = run_invariant(cases, tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan))
    assert f"MUCUDNN_BATCH_INVARIANT=1: only the filter gradients follow the plan '{plan}'" in results.stderr
    assert NOT_KEPT not in results.stderr
    check_same_bits(cases, results)


@pytest.mark.parametrize(
    ("mode", "reason"), [("off", "because the drop-in is off"), ("record", "only recorded")]
)
def test_a_mode_that_passes_calls_on_says_so(mode: str, reason: str, tmp_path: Path) -> None:
    record = {"MUCUDNN_RECORD": str(tmp_path / "record")}
    results = run_invariant([case(LEGACY_PROBLEM, "forward")], tmp_path, MUCUDNN_MODE=mode, **record)
    assert NOT_KEPT in results.stderr
    assert reason in results.stderr

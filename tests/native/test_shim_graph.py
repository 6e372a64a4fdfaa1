"""The drop-in divides convolutions of the graph API like those of the legacy API, with results as good."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import shim_cases
from graph_numbers import LEGACY_NUMBERS
from reference import PASSES
from shim_cases import case, check_results, check_same, problem_of, run_alone, run_under_shim
from shim_modes import following
from shim_problems import GRAPH_PROBLEM, SHAPES

from mucudnn._native import Engine, divided_channels, most_slices
from mucudnn.problems.kernels import Kernel


def graph(problem: str, pass_: str, **more: Any) -> dict[str, Any]:
    return case(problem, pass_, "graph", **more)


def runnable(engine: Engine, convolution: dict[str, Any], size: int) -> list[str]:
    """Return the algorithms that run a case at this size, engines and legacy algorithms alternately."""
    candidates = engine.enumerate(Kernel(problem_of(convolution), convolution["pass_"]).at(size))
    return [c.algorithm for c in candidates if c.status == "CUDNN_STATUS_SUCCESS"]


def number(pass_: str, algorithm: str) -> int:
    """Return the number of an engine or legacy algorithm. On the host engine both have the same numbers."""
    name = algorithm.partition(".tile=")[0]
    return int(name[3:]) if name.startswith("eng") else LEGACY_NUMBERS[pass_][name]


def kinds() -> list[dict[str, Any]]:
    """Return cases of all passes, layouts, types and factors, with groups, 3-D, strides and odd sizes."""
    cases = []
    for pass_, data_type, layout, body, (alpha, beta) in product(
        PASSES, ("f32", "f64", "f16", "bf16"), ("nchw", "nhwc"), SHAPES, ((1.0, 0.0), (1.0, 1.0), (1.5, 0.5))
    ):
        math = "fma" if data_type == "f32" else "default"
        problem = str(problem_of({"problem": f"{data_type}:{layout}:{math}:mb7_{body}"}))
        cases.append(graph(problem, pass_, alpha=alpha, beta=beta))
    nan = {"over": float("nan"), "beta": 0.0}
    return cases + [graph(GRAPH_PROBLEM, pass_, **nan) for pass_ in PASSES]


@pytest.mark.parametrize("sizes", [(3, 3, 1), (1,) * 7], ids=["three", "seven"])
def test_divided_results_hold_the_contract_for_every_kind_of_convolution(
    sizes: tuple[int, ...], engine: Engine, tmp_path: Path
) -> None:
    cases = kinds()
    kernels, used = {}, []
    for convolution in cases:
        pass_ = convolution["pass_"]
        names = runnable(engine, convolution, 1)
        mixed = [[(size, names[-i % len(names)]) for i, size in enumerate(sizes, 1)]]
        legacy = [[(size, next(name for name in names if name[:3] != "eng")) for size in sizes]]
        kernels[convolution["problem"], pass_] = [*mixed, *legacy]
        used.append(sorted({number(pass_, name) for parts in (*mixed, *legacy) for _, name in parts}))
    plan = shim_cases.write_plan(engine, tmp_path / "all.plan", kernels)
    results = run_under_shim(cases, tmp_path, **following(plan))
    divided = sum(
        most_slices(Kernel(problem_of(convolution), convolution["pass_"])) >= len(sizes)
        for convolution in cases
    )
    assert len(cases) > divided > 0.8 * len(cases)
    assert results.summary.startswith(f"{divided} of {len(cases)} convolutions divided")
    check_results(cases, results, used, tmp_path)


def test_groups_of_channels_hold_the_contract_where_a_call_overwrites_its_output(
    engine: Engine, tmp_path: Path
) -> None:
    cases, used, kernels, groups = [], [], {}, {}
    for pass_, data_type, layout, beta in product(
        PASSES, ("f32", "f64", "f16", "bf16"), ("nchw", "nhwc"), (0.0, 0.5)
    ):
        math = "fma" if data_type == "f32" else "default"
        # A plan has a kernel once, whatever beta its calls have.
        body = f"mb7_ic{6 + (beta > 0)}ih12_oc6_kh3_ph1"
        problem = str(problem_of({"problem": f"{data_type}:{layout}:{math}:{body}"}))
        over = {} if beta else {"over": float("nan")}
        cases.append(graph(problem, pass_, alpha=1.5, beta=beta, **over))
        names = runnable(engine, cases[-1], 1)
        whole = most_slices(Kernel(problem_of(cases[-1]), pass_)) == 1
        sizes = (7,) if whole else (3, 3, 1)
        channels = divided_channels(Kernel(problem_of(cases[-1]), pass_))
        parts = [[(size, names[-i % len(names)]) for size in sizes] for i in (1, 2)]
        groups[problem, pass_] = [(4, parts[0]), (channels - 4, parts[1])]
        kernels[problem, pass_] = [[(7, names[0])]]
        used.append(sorted({number(pass_, name) for name in (names[0], *(part[0][1] for part in parts))}))
    plan = shim_cases.write_plan(engine, tmp_path / "all.plan", kernels, groups)
    results = run_under_shim(cases, tmp_path, **following(plan))
    assert results.summary.startswith(f"{len(cases) // 2} of {len(cases)} convolutions divided")
    check_results(cases, results, used, tmp_path)


HUNGRY = {"forward": 2, "backward_data": 0, "backward_filter": 0}  # engines whose workspace grows with N


def dividing_plan(engine: Engine, folder: Path, *, lean: bool = False) -> Path:
    """Write a plan of three micro-batches for each pass, by the engine with the most workspace.

    With `lean` the plan also has a configuration of two micro-batches without workspace.
    """
    kernels = {}
    for pass_, most in HUNGRY.items():
        quick = [[(3, f"eng{most}"), (3, f"eng{most}"), (1, f"eng{most}")]]
        least = next(iter(LEGACY_NUMBERS[pass_].values()))
        kernels[GRAPH_PROBLEM, pass_] = [*quick, [(4, f"eng{least}"), (3, f"eng{least}")]] if lean else quick
    return shim_cases.write_plan(engine, folder / "small.plan", kernels)


@pytest.mark.parametrize("limit", [64 * 1024, 1 << 20])
def test_the_workspace_told_is_within_the_limit_and_holds_the_programs_own_plan_where_it_may(
    limit: int, engine: Engine, tmp_path: Path
) -> None:
    cases = [graph(GRAPH_PROBLEM, pass_, engine=HUNGRY[pass_]) for pass_ in PASSES]
    own = [facts["workspace"] for facts in run_alone(cases, tmp_path).facts]
    assert all(64 * 1024 < size < 1 << 20 for size in own)
    plan = dividing_plan(engine, tmp_path, lean=True)
    results = run_under_shim(cases, tmp_path, **following(plan), MUCUDNN_WORKSPACE_LIMIT=str(limit))
    assert results.summary == "3 of 3 convolutions divided"
    reported_workspaces = [facts["workspace"] for facts in results.facts]
    assert (
        all(size < limit for size in reported_workspaces) if limit < min(own) else reported_workspaces == own
    )
    check_results(cases, results, [list(LEGACY_NUMBERS[pass_].values()) for pass_ in PASSES], tmp_path)


@pytest.mark.parametrize("keep", [False, True])
def test_a_plan_and_a_pack_serve_any_number_of_runs_whatever_became_of_their_descriptors(
    keep: bool, engine: Engine, tmp_path: Path
) -> None:
    cases = [graph(GRAPH_PROBLEM, pass_, repeat=4, keep=keep) for pass_ in PASSES]
    results = run_under_shim(cases, tmp_path, **following(dividing_plan(engine, tmp_path)))
    assert results.summary == "12 of 12 convolutions divided"
    assert results.stderr.count(" # as planned") == len(PASSES), "the drop-in must name each of them once"
    check_results(cases, results, [[HUNGRY[pass_]] for pass_ in PASSES], tmp_path)


def test_without_a_workspace_what_needs_none_runs(engine: Engine, tmp_path: Path) -> None:
    cases = [graph(GRAPH_PROBLEM, pass_, scratch=False, engine=HUNGRY[pass_]) for pass_ in PASSES]
    results = run_under_shim(cases, tmp_path, **following(dividing_plan(engine, tmp_path, lean=True)))
    assert results.summary == "3 of 3 convolutions divided"
    check_results(cases, results, [list(LEGACY_NUMBERS[pass_].values()) for pass_ in PASSES], tmp_path)


def test_a_graph_with_an_unknown_attribute_passes_through(engine: Engine, tmp_path: Path) -> None:
    unknown = [["OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED", "BOOLEAN", [False]]]
    cases = [graph(GRAPH_PROBLEM, pass_, unknown=unknown) for pass_ in PASSES]
    results = run_under_shim(cases, tmp_path, **following(dividing_plan(engine, tmp_path)))
    reason = "a graph with an unknown attribute"
    assert results.summary == f"0 of 3 convolutions divided, 3 passed through ({reason})"
    check_same(cases, results, tmp_path)

"""The drop-in computes a single large sample in tiles, on the program's own tensors."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import shim_cases
from graph_numbers import LEGACY_NUMBERS
from reference import EPILOGUES, PASSES
from shim_cases import ENUMERATORS, case, check_results, problem_of, run_under_shim
from shim_journal import journal_in
from shim_modes import following, measurements, run_online

from mucudnn._native import Engine

SHAPES = (
    "mb1_ic3ih23iw9_oc5_kh3_ph1",
    "mb1_g2ic6ih19iw7_oc4_kh3kw2_sh2_ph1",
    "mb2_ic3id11ih6iw7_oc5_kd2kh3kw3_pd1ph1pw1_dd0dh1dw0",
    "mb1_ic3id2ih23iw5_oc4_kd2kh3kw3_pd0ph1pw1",
)
KINDS = [*product(("f32", "f64", "f16", "bf16"), ("nchw", "nhwc"), SHAPES)]
LARGE = "f32:nchw:{math}:g1mb1_ic16ih96iw96_oc16oh96ow96_kh3kw3_sh1sw1_ph1pw1_dh0dw0"
HABITS = ("get", "find", "graph")


def math_of(habit: str, data_type: str) -> str:
    return "fma" if habit == "graph" and data_type == "f32" else "default"


def numbers(habit: str) -> dict[str, dict[str, int]]:
    return LEGACY_NUMBERS if habit == "graph" else ENUMERATORS


def takes_engines(convolution: dict[str, Any]) -> bool:
    """Return whether engines of the graph API compute these factors, as legacy algorithms do."""
    adds = convolution.get("beta", 0.0) == 1 and convolution["pass_"] == "backward_filter"
    return convolution.get("alpha", 1.0) == 1 and (adds or convolution.get("beta", 0.0) == 0)


def planned(
    engine: Engine, cases: list[dict[str, Any]], path: Path, steps: int
) -> tuple[Path, list[list[int]]]:
    """Write a plan with an algorithm in tiles for each case. Return it with the numbers of the algorithms."""
    kernels, used = {}, []
    for index, convolution in enumerate(cases):
        problem, legacy = problem_of(convolution), numbers(convolution["habit"])[convolution["pass_"]]
        names = [
            name
            for name in shim_cases.algorithms(engine, problem.replace(mini_batch=1), convolution["pass_"])
            if name in legacy or (name.removeprefix("eng").isdecimal() and takes_engines(convolution))
        ]
        name = names[index % len(names)]
        used.append([legacy[name] if name in legacy else int(name[3:])])
        part = (1, f"{name}.tile={steps}")
        kernels[str(problem), convolution["pass_"]] = [[part] * problem.mini_batch]
    return shim_cases.write_plan(engine, path, kernels), used


@pytest.mark.parametrize(
    ("steps", "alpha", "beta"), [(1, 1.0, 0.0), (1, 1.5, 0.5), (4, 1.0, 1.0), (7, 1.0, 0.0), (7, 1.5, 0.5)]
)
@pytest.mark.parametrize("habit", HABITS)
def test_tiles_of_a_plan_are_exact_for_every_type_layout_and_shape(
    habit: str, steps: int, alpha: float, beta: float, engine: Engine, tmp_path: Path
) -> None:
    cases = [
        case(
            problem_of({"problem": f"{type_}:{layout}:{math_of(habit, type_)}:{body}"}),
            pass_, habit, alpha=alpha, beta=beta,
        )
        for (type_, layout, body), pass_ in product(KINDS, PASSES)
        if pass_ != "backward_filter" or type_ in ("f32", "f64")  # each tile would round the sum
    ]  # fmt: skip
    plan, used = planned(engine, cases, tmp_path / "tiles.plan", steps)
    results = run_under_shim(cases, tmp_path, **following(plan, "4MiB"))
    assert results.summary.startswith(f"{len(cases)} of {len(cases)} convolutions divided")
    check_results(cases, results, used, tmp_path)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_bias_activation_and_addition_are_computed_with_their_tiles(
    layout: str, engine: Engine, tmp_path: Path
) -> None:
    cases = [
        case(problem_of({"problem": f"{type_}:{layout}:{math_of('graph', type_)}:{body}{epilogue}"}),
             "forward", "graph")
        for type_, body, epilogue in product(("f32", "bf16"), SHAPES, EPILOGUES)
    ]  # fmt: skip
    plan, used = planned(engine, cases, tmp_path / "fused.plan", 4)
    results = run_under_shim(cases, tmp_path, **following(plan, "4MiB"))
    assert results.summary.startswith(f"{len(cases)} of {len(cases)} convolutions divided")
    check_results(cases, results, used, tmp_path)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("data_type", ["f32", "bf16"])
def test_a_call_that_reads_its_output_adds_to_each_element_once(
    data_type: str, layout: str, engine: Engine, tmp_path: Path
) -> None:
    def large(habit: str) -> str:
        named = LARGE.format(math=math_of(habit, data_type))
        return named.replace("f32:nchw", f"{data_type}:{layout}")

    passes = (
        PASSES if data_type == "f32" else PASSES[:2]
    )  # each tile of a filter gradient would round the sum
    legacy = [case(large("get"), pass_, alpha=1.5, beta=0.5) for pass_ in passes]
    fused = case(large("get"), "forward", alpha=1.5, beta=0.5, fused=True)  # z is y
    added = case(large("graph") + "+add+bias+relu", "forward", "graph", alias={"operand0": "y"})
    cases = [*legacy, fused, added]
    plan, used = planned(engine, cases, tmp_path / "tiles.plan", 16)
    results = run_under_shim(cases, tmp_path, **following(plan, "16MiB"))
    count = len(cases)
    assert results.summary.startswith(f"{count} of {count} convolutions divided, {count} of them in tiles")
    check_results(cases, results, used, tmp_path)


def test_an_ignored_addition_of_the_output_may_be_divided(engine: Engine, tmp_path: Path) -> None:
    problem = LARGE.format(math="fma") + "+add0+bias+relu"  # PyTorch's cudnn_convolution_relu
    cases = [case(problem, "forward", "graph", alias={"operand0": "y"}, over=float("nan"))]
    plan, used = planned(engine, cases, tmp_path / "tiles.plan", 16)
    results = run_under_shim(cases, tmp_path, **following(plan, "16MiB"))
    assert results.summary.startswith("1 of 1 convolutions divided")
    check_results(cases, results, used, tmp_path)


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("habit", HABITS)
def test_without_a_plan_tiles_are_measured_and_chosen_where_they_are_fastest(
    habit: str, beta: float, tmp_path: Path
) -> None:
    cases = [case(LARGE.format(math=math_of(habit, "f32")), pass_, habit, beta=beta) for pass_ in PASSES]
    limit = {"MUCUDNN_WORKSPACE_LIMIT": "1MiB"}
    run_online(tmp_path, *cases, **limit)
    lines = journal_in(tmp_path).read_text().splitlines(keepends=True)
    assert any(line.startswith("candidates ") and ".tile=" in line for line in lines)

    def quick(line: str) -> str:
        name, _, *rest = line.split()[1].split(":")
        return f"measured {name}:{0.001 if '.tile=' in name else 1000.0}:{':'.join(rest)}\n"

    edited = [quick(line) if line.startswith("measured ") else line for line in lines]
    for index, line in enumerate(edited):  # the race may have measured no tiles of a kernel
        if line.startswith("candidates "):
            tiled = [word.split(":") for word in line.split() if ".tile=" in word]
            edited[index] = (
                "".join(
                    f"measured {name}:0.001:{size}:0.001:0.001:0\n"
                    for name, size, *_ in tiled
                    if int(size) <= 2**20 and f"measured {name}:" not in "".join(lines)
                )
                + line
            )
    journal_in(tmp_path).write_text("".join(edited))
    results = run_online(tmp_path, *cases, **limit)
    assert measurements(results) == 0
    assert results.summary.startswith("3 of 3 convolutions divided, 3 of them in tiles")
    assert all(facts["workspace"] <= 2**20 for facts in results.facts)
    check_results(cases, results, [list(numbers(habit)[pass_].values()) for pass_ in PASSES], tmp_path)

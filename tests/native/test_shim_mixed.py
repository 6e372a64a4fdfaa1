"""The drop-in divides graphs of mixed layouts and data types, and of large mini-batches."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import shim_cases
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS
from reference import EPILOGUES, PASSES
from shim_cases import case, check_results, problem_of, run_alone, run_under_shim
from shim_modes import following, online_in, run_online
from shim_problems import SHAPES

from mucudnn._native import Engine

LAYOUTS = ("nhwc/nchw/nhwc", "nchw/nhwc/nchw", "nchw/nchw/nhwc", "nhwc/nchw/nchw")
WIDE = "f16>f32:nchw:default:mb7_ic4ih12_oc6_kh3_ph1"


def graph(text: str, pass_: str = "forward", **more: Any) -> dict[str, Any]:
    return case(str(problem_of({"problem": text})), pass_, "graph", **more)


def numbers(convolution: dict[str, Any]) -> list[int]:
    """Return two engines: implicit and, if the host engine has it for the output's type, explicit GEMM."""
    problem, implicit = problem_of(convolution), next(iter(LEGACY_NUMBERS[convolution["pass_"]].values()))
    return [implicit, EXPLICIT_GEMM[convolution["pass_"]] if problem.y_type == "f32" else implicit]


def plan_for(engine: Engine, folder: Path, cases: list[dict[str, Any]]) -> Path:
    kernels = {}
    for convolution in cases:
        first, second = (f"eng{number}" for number in numbers(convolution))
        sizes = (
            (3, 3, 1)
            if problem_of(convolution).mini_batch == 7
            else (65536, problem_of(convolution).mini_batch - 65536)
        )
        parts = [(size, (first, second)[i % 2]) for i, size in enumerate(sizes)]
        kernels[convolution["problem"], convolution["pass_"]] = [parts]
    return shim_cases.write_plan(engine, folder / "mixed.plan", kernels)


def check_divided(cases: list[dict[str, Any]], engine: Engine, folder: Path) -> None:
    results = run_under_shim(cases, folder, **following(plan_for(engine, folder, cases)))
    runs = sum(convolution.get("repeat", 1) for convolution in cases)
    assert results.summary == f"{runs} of {runs} convolutions divided"
    check_results(cases, results, [sorted({*numbers(convolution)}) for convolution in cases], folder)


def test_divided_results_of_mixed_layouts_hold_the_contract(engine: Engine, tmp_path: Path) -> None:
    kinds = product(("f32:{}:fma", "bf16:{}:default"), LAYOUTS, (SHAPES[1], SHAPES[2]), PASSES)
    cases = [graph(f"{type_.format(layout)}:mb7_{body}", pass_) for type_, layout, body, pass_ in kinds]
    cases += [
        graph(f"f16:{layout}:default:mb7_{SHAPES[0]}{epilogue}")
        for layout, epilogue in product(LAYOUTS, EPILOGUES)
    ]
    check_divided(cases, engine, tmp_path)


def test_divided_results_of_16_bit_inputs_and_an_fp32_output_hold_the_contract(
    engine: Engine, tmp_path: Path
) -> None:
    kinds = product(("f16>f32", "bf16>f32"), ("nchw", "nhwc", "nhwc/nchw/nchw"), SHAPES)
    cases = [graph(f"{types}:{layout}:default:mb7_{body}") for types, layout, body in kinds]
    check_divided(cases, engine, tmp_path)


@pytest.mark.parametrize("text", [WIDE, WIDE.replace("f16>f32:nchw", "f16:nchw/nchw/nhwc")])
def test_online_the_workspace_told_is_within_the_limit(text: str, tmp_path: Path) -> None:
    convolution = graph(text)
    convolution["engine"] = numbers(convolution)[0]  # it copies x and w, as every engine does
    (own,) = (facts["workspace"] for facts in run_alone([convolution], tmp_path).facts)
    results = run_online(tmp_path, convolution, **online_in(tmp_path, str(own // 2)))
    assert results.summary.startswith("1 of 1 convolutions divided")
    (told,) = (facts["workspace"] for facts in results.facts)
    assert told <= own // 2
    used = list(LEGACY_NUMBERS["forward"].values()) if problem_of(convolution).y_type == "f32" else [0]
    check_results([convolution], results, [used], tmp_path)


def test_a_mini_batch_above_65536_is_divided(engine: Engine, tmp_path: Path) -> None:
    cases = [graph("f32:nchw:fma:mb70000_ic1ih2_oc1_kh1", pass_) for pass_ in PASSES]
    check_divided(cases, engine, tmp_path)


def test_what_is_recorded_of_mixed_graphs_is_optimized_offline(tmp_path: Path) -> None:
    record = tmp_path / "network.txt"
    convolution = graph(WIDE, repeat=2)
    run_under_shim([convolution], tmp_path, MUCUDNN_MODE="record", MUCUDNN_RECORD=str(record))
    assert f'# forward*2\n{convolution["problem"]}_n"*2"\n' in record.read_text()

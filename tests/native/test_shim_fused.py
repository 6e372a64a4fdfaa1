"""The drop-in divides forward convolutions with pointwise operations like single convolutions."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shim_cases
from accepting_library import build_accepting_library
from command_line import predict_longer
from graph_numbers import LEGACY_NUMBERS
from odd_chains import ODD_CHAINS
from programs import HANGS
from reference import EPILOGUES
from shim_cases import case, check_results, check_same, problem_of, run_under_shim
from shim_modes import following
from shim_problems import GRAPH_PROBLEM, SHAPES

from mucudnn._native import Engine

SMALL = f"{GRAPH_PROBLEM}+add+bias+relu"
TORCH_RELU = f"{GRAPH_PROBLEM}+add0+bias+relu"  # the graph of PyTorch's cudnn_convolution_relu
UNRECTIFIED = f"{GRAPH_PROBLEM}+bias"  # for tests with factors, which the host engine refuses before RELU
SCALED = f"{GRAPH_PROBLEM}+0.5add-0.25+bias+relu"  # XLA's side input, PyTorch's add_relu with an alpha
ENGINES = list(LEGACY_NUMBERS["forward"].values())


def fused(problem: str = SMALL, **more: Any) -> dict[str, Any]:
    return case(problem, "forward", "graph", **more)


def plan_for(engine: Engine, folder: Path, *problems: str, parts: Any = ((3, "eng2"), (4, "eng0"))) -> Path:
    kernels = {(problem, "forward"): [list(parts)] for problem in problems}
    return shim_cases.write_plan(engine, folder / "fused.plan", kernels)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_groups_of_channels_take_their_part_of_the_bias(layout: str, engine: Engine, tmp_path: Path) -> None:
    plain = f"f32:{layout}:fma:mb3_ic12ih9_oc12_kh3_ph1"
    epilogues = {"+bias+relu": True, "+bias": True, "+add0+bias+relu": True, "+add+bias+relu": False}
    texts = {
        str(problem_of({"problem": plain + epilogue})): grouped for epilogue, grouped in epilogues.items()
    }
    missing = [[(3, "eng99")]]  # an engine that no library has
    groups = [(8, [(1, "eng0")] * 3), (4, [(3, "eng2")])]
    plan = shim_cases.write_plan(
        engine,
        tmp_path / "groups.plan",
        {(text, "forward"): missing if grouped else [[(3, "eng0")]] for text, grouped in texts.items()},
        {(text, "forward"): groups for text, grouped in texts.items() if grouped},
    )
    aliases = [{"alias": {"operand0": "y"}, "over": float("nan")} if "add0" in text else {} for text in texts]
    cases = [fused(text, **alias) for text, alias in zip(texts, aliases, strict=True)]
    results = run_under_shim(cases, tmp_path, **following(plan), MUCUDNN_WORKSPACE_LIMIT="4MiB")
    assert results.summary.startswith("3 of 4 convolutions divided")
    check_results(cases, results, [[0, 2]] * 4, tmp_path)


@pytest.mark.parametrize("sizes", [(3, 3, 1), (1,) * 7], ids=["three", "seven"])
def test_divided_results_hold_the_contract_for_every_type_layout_and_epilogue(
    sizes: tuple[int, ...], engine: Engine, tmp_path: Path
) -> None:
    cases, used, kernels = [], [], {}
    kinds = product(("f32", "f64", "f16", "bf16"), ("nchw", "nhwc"), SHAPES, EPILOGUES)
    for data_type, layout, body, epilogue in kinds:
        math = "fma" if data_type == "f32" else "default"
        text = f"{data_type}:{layout}:{math}:mb7_{body}{epilogue}"
        convolution = fused(str(problem_of({"problem": text})))
        names = shim_cases.algorithms(engine, problem_of(convolution).replace(mini_batch=1), "forward")
        parts = [(size, names[i % len(names)]) for i, size in enumerate(sizes)]
        kernels[convolution["problem"], "forward"] = [parts]
        cases.append(convolution)
        used.append(sorted({int(name[3:].split("_")[0]) for _, name in parts}))
    plan = shim_cases.write_plan(engine, tmp_path / "all.plan", kernels)
    results = run_under_shim(cases, tmp_path, **following(plan))
    assert results.summary == f"{len(cases)} of {len(cases)} convolutions divided"
    check_results(cases, results, used, tmp_path)


@pytest.mark.parametrize(
    "more",
    [
        {"reverse": True},
        {"keep": True, "repeat": 3},
        {"problem": TORCH_RELU, "alias": {"operand0": "y"}, "over": float("nan")},
        {"alias": {"operand0": "y"}},
        {"share": 4},
        {"odd": {"between_layout": "nhwc"}},
        {"odd": {"swapped": True}},
        {"problem": SCALED},
        {"problem": SCALED, "odd": {"swapped": True, "between_layout": "nhwc"}},
    ],
    ids=[
        "any order",
        "run again",
        "as PyTorch's relu",
        "added in place",
        "threads",
        "virtual tensors of another layout, as cudnn-frontend",
        "what is added comes first",
        "scaled",
        "scaled, and what is added comes first",
    ],
)
def test_however_a_program_writes_the_chain_it_is_divided(
    more: dict[str, Any], engine: Engine, tmp_path: Path
) -> None:
    cases = [fused(**more)]
    results = run_under_shim(
        cases, tmp_path, **following(plan_for(engine, tmp_path, SMALL, TORCH_RELU, SCALED))
    )
    runs = more.get("repeat", 1) + 5 * more.get("share", 0)
    assert results.summary == f"{runs} of {runs} convolutions divided"
    check_results(cases, results, [[0, 2]], tmp_path)


def test_nan_goes_through_the_relu_of_a_divided_chain(engine: Engine, tmp_path: Path) -> None:
    cases = [fused(alias={"operand0": "y"}, over=float("nan"))]
    results = run_under_shim(cases, tmp_path, **following(plan_for(engine, tmp_path, SMALL)))
    assert results.summary == "1 of 1 convolutions divided"
    assert np.isnan(results.outputs[0]).all()


ODD = {
    "the convolution's alpha": ({"alpha": 2.0}, "a fused convolution with alpha or beta"),
    "what comes before the bias is scaled": ({"scale": 2.0}, "a scaled pointwise operation"),
    "the bias is scaled": ({"factor": 0.5}, "a scaled pointwise operation"),
    "16-bit intermediates": ({"intermediate": "f16"}, "an intermediate tensor of another data type"),
    "pointwise in fp64": ({"compute": "f64"}, "the compute type"),
    "an operand of another type": ({"operand": {"type_": "f16"}}, "mixed data types"),
    "an operand of another layout": ({"operand": {"layout": "nhwc"}}, "tensors are not packed"),
    "one number for all": ({"operand": {"sizes_of": {"operand1": (1,) * 4}}}, "an operand of other sizes"),
    "a picture for all": (
        {"operand": {"sizes_of": {"operand0": (1, 6, 12, 12)}}},
        "an operand of other sizes",
    ),
    "operands at any address": ({"operand": {"alignment": 4}}, "tensors aligned to less than 16 bytes"),
    "an upper clip": (
        {"settings": [["POINTWISE_RELU_UPPER_CLIP", "DOUBLE", [6.0]]]},
        "RELU with other parameters",
    ),
    "a lower clip": (
        {"settings": [["POINTWISE_RELU_LOWER_CLIP", "DOUBLE", [0.5]]]},
        "RELU with other parameters",
    ),
    "a slope": (
        {"settings": [["POINTWISE_RELU_LOWER_CLIP_SLOPE", "DOUBLE", [0.1]]]},
        "RELU with other parameters",
    ),
    "NaN that ends": (
        {"settings": [["POINTWISE_NAN_PROPAGATION", "NAN_PROPOGATION", [0]]]},
        "RELU with other parameters",
    ),
    "a setting of others": (
        {"settings": [["POINTWISE_SWISH_BETA", "DOUBLE", [1.0]]]},
        "a pointwise function with an unknown attribute",
    ),
}


@pytest.mark.parametrize("name", list(ODD))
def test_a_chain_of_another_kind_passes_through_and_the_reason_is_told(
    name: str, engine: Engine, tmp_path: Path
) -> None:
    odd, reason = ODD[name]
    problem = UNRECTIFIED if {"scale", "factor"} & set(odd) else SMALL
    if "intermediate" in odd:
        problem = problem.replace("nchw", "nhwc")  # in NCHW no engine runs the graph
    cases = [fused(problem, odd=odd)]
    results = run_under_shim(cases, tmp_path, **following(plan_for(engine, tmp_path, problem)))
    assert results.summary == f"0 of 1 convolutions divided, 1 passed through ({reason})"
    check_same(cases, results, tmp_path)


@pytest.fixture(scope="module")
def accepting(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of programs on a library that accepts every graph."""
    library = build_accepting_library(tmp_path_factory.mktemp("accepting"))
    return {"MUCUDNN_LIBRARY": str(library), "MUCUDNN_MODE": "online", "MUCUDNN_CACHE": ""}


@pytest.mark.parametrize(("chain", "reason"), [(f.__name__, text) for f, text in ODD_CHAINS.items()])
def test_a_graph_that_is_no_such_chain_passes_through_and_the_reason_is_told(
    chain: str, reason: str, accepting: dict[str, str], tmp_path: Path
) -> None:
    results = run_under_shim([fused(f"{GRAPH_PROBLEM}+add", chain=chain)], tmp_path, **accepting)
    assert results.summary == f"0 of 1 convolutions divided, 1 passed through ({reason})"


def test_a_chain_that_its_engine_is_compiled_for_passes_through_and_is_not_recorded(
    accepting: dict[str, str], tmp_path: Path
) -> None:
    record = tmp_path / "network.txt"
    environment = {**accepting, "MUCUDNN_RECORD": str(record), "COMPILES": "1"}
    results = run_under_shim([fused(f"{GRAPH_PROBLEM}+relu")], tmp_path, **environment)
    reason = "fused by an engine that is compiled at run time"
    assert results.summary == f"0 of 1 convolutions divided, 1 passed through ({reason})"
    assert "+relu" not in record.read_text()


def test_a_plan_for_the_plain_convolution_is_not_one_for_the_chain(engine: Engine, tmp_path: Path) -> None:
    cases = [fused(), fused(GRAPH_PROBLEM), fused(f"{GRAPH_PROBLEM}+bias+relu")]
    plan = plan_for(engine, tmp_path, GRAPH_PROBLEM, f"{GRAPH_PROBLEM}+bias+relu")
    results = run_under_shim(cases, tmp_path, **following(plan))
    assert results.summary == "2 of 3 convolutions divided, 1 passed through (not in the plan)"
    check_results(cases, results, [[0, 2]] * 3, tmp_path)


def mucudnn(folder: Path, *command: str) -> str:
    environment = {**os.environ, "MUCUDNN_CACHE": str(folder / "cache.sqlite")}
    result = subprocess.run(
        [sys.executable, "-m", "mucudnn", *command],
        env=environment, capture_output=True, text=True, check=False, timeout=HANGS,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_what_is_recorded_is_optimized_offline_and_the_plan_is_followed(tmp_path: Path) -> None:
    record, plan = tmp_path / "network.txt", tmp_path / "network.plan"
    cases = [fused(repeat=3, engine=2), fused(TORCH_RELU, alias={"operand0": "y"}, engine=2)]
    recorded = {"MUCUDNN_MODE": "record", "MUCUDNN_RECORD": str(record)}
    check_same(cases, run_under_shim(cases, tmp_path, **recorded), tmp_path)
    assert f'# forward*3\n{SMALL}_n"*3"\n' in record.read_text()
    assert f'# forward*1\n{TORCH_RELU}_n"*1"\n' in record.read_text()

    decided = mucudnn(tmp_path, "optimize", str(record), "--workspace", "40KiB", "--output", str(plan))
    assert "+add+bias+relu" in decided
    assert "+add0+bias+relu" in mucudnn(tmp_path, "plan", "show", str(plan))
    predict_longer(plan)
    mucudnn(tmp_path, "plan", "verify", str(plan))

    results = run_under_shim(cases, tmp_path, **following(plan), MUCUDNN_WORKSPACE_LIMIT="40KiB")
    assert "not in the plan" not in results.stderr
    assert all(facts["workspace"] <= 40 * 1024 for facts in results.facts)
    check_results(cases, results, [ENGINES] * 2, tmp_path)

"""Convolutions through the graph API are divided as those of the legacy API are, with results as good."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import shim_cases
from reference import PASSES
from shim_cases import case, check_results, problem_of, run_under_shim
from test_graph_convolutions import LEGACY_NUMBERS

from mucudnn._native import Engine

SMALL = "f32:nchw:strict:g1mb7_ic4ih12iw12_oc6oh12ow12_kh3kw3_sh1sw1_ph1pw1_dh0dw0"
BODIES = (
    "g1ic4ih12_oc6_kh3_ph1",
    "g2ic6ih9iw7_oc4_kh3kw2_sh2_ph1",
    "ic3id5ih6iw7_oc5_kd2kh3kw3_pd1ph1pw1_dd0dh1dw0",
)


def graph(problem: str, pass_: str, **more: Any) -> dict[str, Any]:
    return case(problem, pass_, "graph", **more)


def runnable(engine: Engine, one: dict[str, Any], size: int) -> list[str]:
    """Engines and legacy algorithms in turns."""
    candidates = engine.enumerate(problem_of(one).replace(mini_batch=size), one["pass_"])
    return [c.algorithm for c in candidates if c.status == "CUDNN_STATUS_SUCCESS"]


def number(pass_: str, algorithm: str) -> int:
    """Of an engine, or of a legacy algorithm: on the host engine they are the same."""
    return int(algorithm[3:]) if algorithm.startswith("eng") else LEGACY_NUMBERS[pass_][algorithm]


def kinds() -> list[dict[str, Any]]:
    """All passes, layouts, types and factors; groups, 3-D, strides and odd sizes among them."""
    cases = []
    for pass_, data_type, layout, body, (alpha, beta) in product(
        PASSES, ("f32", "f64", "f16", "bf16"), ("nchw", "nhwc"), BODIES, ((1.0, 0.0), (1.0, 1.0), (1.5, 0.5))
    ):
        math = "strict" if data_type == "f32" else "default"
        problem = str(problem_of({"problem": f"{data_type}:{layout}:{math}:mb7_{body}"}))
        cases.append(graph(problem, pass_, alpha=alpha, beta=beta))
    nan = {"over": float("nan"), "beta": 0.0}
    return cases + [graph(SMALL, pass_, **nan) for pass_ in PASSES]


def followed(plan: Path) -> dict[str, str]:
    return {"MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan)}


@pytest.mark.parametrize("sizes", [(3, 3, 1), (1,) * 7], ids=["three", "seven"])
def test_divided_results_hold_the_contract_for_every_kind_of_convolution(
    sizes: tuple[int, ...], engine: Engine, tmp_path: Path
) -> None:
    cases = kinds()
    kernels, used = {}, []
    for one in cases:
        pass_ = one["pass_"]
        names = runnable(engine, one, 1)
        mixed = [[(size, names[-i % len(names)]) for i, size in enumerate(sizes, 1)]]
        legacy = [[(size, next(name for name in names if name[:3] != "eng")) for size in sizes]]
        kernels[one["problem"], pass_] = [*mixed, *legacy]
        used.append(sorted({number(pass_, name) for parts in (*mixed, *legacy) for _, name in parts}))
    plan = shim_cases.write_plan(engine, tmp_path / "all.plan", kernels)
    found = run_under_shim(cases, tmp_path, **followed(plan))
    assert found.summary == f"{len(cases)} of {len(cases)} convolutions divided"
    check_results(cases, found, used, tmp_path)

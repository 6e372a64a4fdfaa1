"""Any call of the CUDA runtime that the drop-in makes may fail: the program notices nothing.

The host engine passes for NVIDIA's library here, on a CUDA runtime whose calls fail one after another.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from fault_attempts import attempts, check_output
from shim_cases import case
from wrapped_cudart import NAMES, build_cudart
from wrapped_library import build_wrapper

from mucudnn._native import format_plan, host_library, parse_descriptor

LEGACY = "f32:nchw:default:mb6_ic4ih10_oc6_kh3_ph1"
GRAPH = LEGACY.replace("default", "fma")
CASES: dict[str, dict[str, Any]] = {
    "get": case(LEGACY, "forward", "get", beta=0.5, repeat=2),
    "find_ex": case(LEGACY, "backward_data", "find_ex", beta=0.5),
    "graph": case(GRAPH, "forward", "graph", engine=2, beta=0.5, repeat=2),
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("failing")
    build_cudart(folder)
    wrapper = str(build_wrapper(folder, "-DNO_HOST"))
    return {"LD_LIBRARY_PATH": str(folder), "MUCUDNN_LIBRARY": wrapper}


def check_attempts(convolution: dict[str, Any], kind: str, folder: Path, variables: dict[str, str]) -> None:
    cudart = Path(variables["LD_LIBRARY_PATH"]) / "libcudart.so.13"
    first, *others = attempts([convolution], folder, cudart, kind, MUCUDNN_LOG="off", **variables)
    assert len(others) > 5
    for outcome in others:
        what = f"call {outcome['number']} fails, {outcome['failed']}"
        assert outcome["error"] == "", what
        check_output(outcome, first, what)
        if kind == "once":
            assert outcome["last_error"] == 0, f"{what}: the program's next cudaGetLastError reports it"


@pytest.mark.parametrize("kind", ["once", "sticky"])
@pytest.mark.parametrize("name", CASES)
def test_the_program_does_not_notice_a_call_that_fails_during_online_tuning(
    name: str, kind: str, libraries: dict[str, str], tmp_path: Path
) -> None:
    online = {"MUCUDNN_MODE": "online", "MUCUDNN_CACHE": "", "MUCUDNN_BATCH_POLICY": "undivided"}
    online["FREE_BYTES"] = str(2**24)  # so that measuring takes small tensors
    check_attempts(CASES[name], kind, tmp_path, {**libraries, **online})


@pytest.mark.parametrize("name", ["get", "graph"])
def test_the_program_does_not_notice_a_call_that_fails_under_a_plan(
    name: str, libraries: dict[str, str], tmp_path: Path
) -> None:
    version = ctypes.CDLL(host_library()).cudnnGetVersion()
    convolution, parts = CASES[name], {"get": "WINOGRAD_NONFUSED", "graph": "eng2"}
    header = {
        "engine": "cudnn",
        "device": f"{NAMES[0]}, compute capability 0.0",
        "library": f"cuDNN {version // 10000}.{version // 100 % 100}.{version % 100}",
    }
    configuration = [(2, parts[name], 1.0, 0)] * 3
    problem, _, _ = parse_descriptor(convolution["problem"])
    plan = tmp_path / "one.plan"
    row = (problem, convolution["pass_"], 1, configuration, [configuration], [], [])
    plan.write_text(format_plan(header, [row]))
    following = {"MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan)}
    check_attempts(convolution, "once", tmp_path, {**libraries, **following})

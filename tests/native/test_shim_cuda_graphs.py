"""The drop-in makes CUDA graphs of the program's own execution plan, unless that exceeds the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import scipy_openblas32
from reference import PASSES
from shim_cases import Ran, case, run_alone, run_under_shim, write_plan
from wrapped_library import build_wrapper

from mucudnn._native import Engine, host_library

SMALL = "f32:nchw:fma:g1mb7_ic4ih12iw12_oc6oh12ow12_kh3kw3_sh1sw1_ph1pw1_dh0dw0"
REFUSED = 3013  # CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API
HUNGRY = {"forward": 2, "backward_data": 0, "backward_filter": 0}  # engines whose workspace grows with N
CALLS = pytest.mark.parametrize("call", ["CreateCudaGraph", "PopulateCudaGraph", "UpdateCudaGraph"])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wrapper(tmp_path_factory.mktemp("graphs"))


def run_graph_calls(
    call: str, engine: Engine, library: Path, folder: Path, limit: str
) -> tuple[list[Any], Ran]:
    """Run `call` on a convolution of each pass under the shim, with a plan that divides all of them."""
    kernels = {(SMALL, pass_): [[(1, f"eng{number}")] * 7] for pass_, number in HUNGRY.items()}
    plan = write_plan(engine, folder / "small.plan", kernels)
    cases = [case(SMALL, pass_, "graph", engine=HUNGRY[pass_], call=call) for pass_ in PASSES]
    environment = {"MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan), "MUCUDNN_WORKSPACE_LIMIT": limit}
    wrapped = {"MUCUDNN_LIBRARY": str(library), "HOST_ENGINE": host_library(), "CUDA_GRAPHS": "1"}
    return cases, run_under_shim(cases, folder, **environment, **wrapped)


@CALLS
def test_a_cuda_graph_computes_what_the_programs_own_plan_does(
    call: str, engine: Engine, library: Path, tmp_path: Path
) -> None:
    cases, results = run_graph_calls(call, engine, library, tmp_path, "1MiB")
    assert "put into a CUDA graph" in results.summary
    executed = [
        {name: value for name, value in convolution.items() if name != "call"} for convolution in cases
    ]
    alone = run_alone(executed, tmp_path)
    assert [facts["statuses"] for facts in results.facts] == [[0]] * len(cases)
    for actual, expected in zip(results.outputs, alone.outputs, strict=True):
        assert (actual == expected).all()


@CALLS
def test_above_the_limit_a_cuda_graph_is_refused_as_plans_refuse_it_that_have_none(
    call: str, engine: Engine, library: Path, tmp_path: Path
) -> None:
    _, results = run_graph_calls(call, engine, library, tmp_path, "64KiB")
    assert [facts["statuses"] for facts in results.facts] == [[REFUSED]] * len(PASSES)
    assert "no CUDA graph: the program's own plan is above the workspace limit" in results.stderr


def test_a_library_as_old_as_9_2_without_populate_is_divided(engine: Engine, tmp_path: Path) -> None:
    name = b"cudnnBackendPopulateCudaGraph"
    older = tmp_path / "libcudnn.so.9"
    older.write_bytes(Path(host_library()).read_bytes().replace(name, name[::-1]))
    plan = write_plan(engine, tmp_path / "small.plan", {(SMALL, "forward"): [[(1, "eng2")] * 7]})
    environment = {"MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan), "MUCUDNN_WORKSPACE_LIMIT": "1MiB"}
    libraries = {"MUCUDNN_LIBRARY": str(older), "LD_LIBRARY_PATH": scipy_openblas32.get_lib_dir()}
    results = run_under_shim(
        [case(SMALL, "forward", "graph", engine=2)], tmp_path, **environment, **libraries
    )
    assert results.summary == "1 of 1 convolutions divided"

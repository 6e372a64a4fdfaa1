"""A convolution whose workspace finds no memory on the device is divided further instead of failing."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS
from reference import PASSES
from shim_cases import ROOMY, case, check_results, run_alone, run_under_shim, write_plan
from shim_modes import following, online_in
from shim_problems import GRAPH_PROBLEM, LEGACY_PROBLEM
from wrapped_cudart import NAMES, build_cudart
from wrapped_library import build_wrapper

from mucudnn._native import Engine, format_plan, host_library, parse_descriptor

ANOTHER = GRAPH_PROBLEM.replace("mb7", "mb5")
assert ANOTHER != GRAPH_PROBLEM


@pytest.fixture(scope="module")
def on_device(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which the host engine passes for NVIDIA's library, on a device."""
    folder = tmp_path_factory.mktemp("device")
    build_cudart(folder)
    wrapper = str(build_wrapper(folder, "-DNO_HOST"))
    return {"LD_LIBRARY_PATH": str(folder), "HOST_ENGINE": host_library(), "MUCUDNN_LIBRARY": wrapper}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    wrapper = str(build_wrapper(tmp_path_factory.mktemp("lacking")))
    return {"HOST_ENGINE": host_library(), "MUCUDNN_LIBRARY": wrapper}


@pytest.fixture
def other_plan(engine: Engine, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a plan for another convolution: those of the tests pass through."""
    plan = write_plan(engine, tmp_path / "other.plan", {(ANOTHER, "forward"): [[(5, "eng0")]]})
    return following(plan)


def own_workspace(pass_: str, folder: Path) -> int:
    """Return the bytes that explicit GEMM needs for the whole mini-batch."""
    convolution = case(GRAPH_PROBLEM, pass_, "graph", engine=EXPLICIT_GEMM[pass_])
    return int(run_alone([convolution], folder).facts[0]["workspace"])


# The program cannot allocate the workspace of an execution plan


def plan_for_the_device(path: Path) -> Path:
    """Write a plan for another convolution, made on the device. Return its path."""
    version = ctypes.CDLL(host_library()).cudnnGetVersion()
    header = {
        "engine": "cudnn",
        "device": f"{NAMES[0]}, compute capability 0.0",
        "library": f"cuDNN {version // 10000}.{version // 100 % 100}.{version % 100}",
    }
    parts = [(5, "eng0", 1.0, 0)]
    path.write_text(
        format_plan(header, [(parse_descriptor(ANOTHER)[0], "forward", 1, parts, [parts], [], [])])
    )
    return path


def retrying(pass_: str, allocates: int) -> dict[str, Any]:
    """Return a program that makes its plan three times, and can allocate `allocates` bytes of workspace."""
    engines = [EXPLICIT_GEMM[pass_]] * 3
    return case(GRAPH_PROBLEM, pass_, "graph", engines=engines, allocates=allocates)


@pytest.mark.parametrize("pass_", PASSES)
def test_a_plan_is_divided_further_after_the_program_could_not_allocate_the_last_ones_workspace(
    pass_: str, on_device: dict[str, str], tmp_path: Path
) -> None:
    own = own_workspace(pass_, tmp_path)
    convolution = retrying(pass_, own // 3)
    with pytest.raises(AssertionError, match="unable to find an engine"):
        run_alone([convolution], tmp_path)
    not_in_it = following(plan_for_the_device(tmp_path / "other.plan"))
    results = run_under_shim([convolution], tmp_path, **on_device, **not_in_it, FREE_BYTES=str(own - 1))
    assert 0 < results.facts[0]["workspace"] <= own // 3
    assert results.summary == "1 of 1 convolutions divided"
    assert results.stderr.count("the device has no memory for") == 1
    check_results([convolution], results, [[EXPLICIT_GEMM[pass_]]], tmp_path)


def test_after_measuring_the_fastest_division_in_the_memory_left_is_taken(
    on_device: dict[str, str], tmp_path: Path
) -> None:
    own = own_workspace("forward", tmp_path)
    convolution = retrying("forward", own // 3)
    results = run_under_shim(
        [convolution], tmp_path, **on_device, **online_in(tmp_path), FREE_BYTES=str(own - 1)
    )
    assert results.facts[0]["workspace"] <= own // 3
    check_results([convolution], results, [list(LEGACY_NUMBERS["forward"].values())], tmp_path)


def test_a_plan_is_not_divided_further_while_the_device_has_the_memory(
    on_device: dict[str, str], tmp_path: Path
) -> None:
    own = own_workspace("forward", tmp_path)
    convolution = retrying("forward", own - 1)
    with pytest.raises(AssertionError, match="unable to find an engine"):
        run_under_shim([convolution], tmp_path, **on_device, **online_in(tmp_path), FREE_BYTES=str(2 * own))


# The library finds no memory while it executes


@pytest.mark.parametrize("lacking", [1, 2])
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("habit", ["graph", "fixed"])
def test_an_execution_that_lacks_memory_runs_in_smaller_slices(
    habit: str, pass_: str, lacking: int, library: dict[str, str], other_plan: dict[str, str], tmp_path: Path
) -> None:
    problem = GRAPH_PROBLEM if habit == "graph" else LEGACY_PROBLEM
    number = EXPLICIT_GEMM[pass_]
    choice = {"engine": number} if habit == "graph" else {"algorithm": number, "workspace": ROOMY}
    adds = habit == "fixed" or pass_ == "backward_filter"  # the graph API's engines add no other results
    convolution = case(problem, pass_, habit, alpha=1.0, beta=1.0 if adds else 0.0, **choice)
    results = run_under_shim([convolution], tmp_path, **other_plan, **library, LACKING=str(lacking))
    assert results.facts[0]["statuses"] == [0]
    assert "1 in smaller slices" in results.summary
    assert results.stderr.count("found no memory") == 1
    check_results([convolution], results, [[number]], tmp_path)


@pytest.mark.parametrize("habit", ["graph", "fixed"])
def test_the_librarys_error_stands_if_single_samples_lack_memory_too(
    habit: str, library: dict[str, str], other_plan: dict[str, str], tmp_path: Path
) -> None:
    number = EXPLICIT_GEMM["forward"]
    choice = {"engine": number} if habit == "graph" else {"algorithm": number, "workspace": ROOMY}
    problem = GRAPH_PROBLEM if habit == "graph" else LEGACY_PROBLEM
    convolution = case(problem, "forward", habit, **choice)
    results = run_under_shim([convolution], tmp_path, **other_plan, **library, LACKING="1000")
    assert results.facts[0]["statuses"] == [4004]

"""Each CUDA device has kernels and times of its own, and the drop-in disturbs no stream capture."""

from __future__ import annotations

import ctypes
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import shim_cases
from programs import SHIM, preload, run
from reference import PASSES
from shim_cases import ENUMERATORS, Ran, case, run_under_shim
from shim_journal import journal_in
from shim_modes import online_in, run_online
from wrapped_cudart import NAMES, build_cudart
from wrapped_library import build_wrapper

from mucudnn._native import format_plan, host_library, parse_descriptor

SMALL = "f32:nchw:default:g1mb6_ic4ih10iw10_oc6oh10ow10_kh3kw3_sh1sw1_ph1pw1_dh0dw0"
STRICT = SMALL.replace("default", "fma")  # the math of the host engine's graph API


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which the host engine passes for NVIDIA's library, on two devices."""
    folder = tmp_path_factory.mktemp("devices")
    build_cudart(folder)
    wrapper = str(build_wrapper(folder, "-DNO_HOST"))
    return {"LD_LIBRARY_PATH": str(folder), "HOST_ENGINE": host_library(), "MUCUDNN_LIBRARY": wrapper}


def check_results(cases: list[dict[str, Any]], results: Ran, folder: Path) -> None:
    plain = [
        {**convolution, "device": None, "capturing": None, "others_capturing": None} for convolution in cases
    ]
    used = [list(ENUMERATORS[convolution["pass_"]].values()) for convolution in cases]
    shim_cases.check_results(plain, results, used, folder)


def cases_on_both_devices(habit: str, problem: str) -> list[dict[str, Any]]:
    return [case(problem, pass_, habit, device=device) for device in (0, 1) for pass_ in PASSES]


@pytest.mark.parametrize(("habit", "problem"), [("get", SMALL), ("graph", STRICT)])
def test_each_device_has_times_of_its_own(
    habit: str, problem: str, libraries: dict[str, str], tmp_path: Path
) -> None:
    cases = cases_on_both_devices(habit, problem)
    first, second = (run_online(tmp_path, *cases, **libraries) for _ in range(2))
    journal = journal_in(tmp_path).read_text()
    for name in NAMES:
        assert journal.count(f"\ndevice {name}, compute capability 0.0\n") == len(PASSES)
    assert "measuring" not in second.stderr
    for results in (first, second):
        check_results(cases, results, tmp_path)


@pytest.mark.parametrize(("habit", "problem"), [("get", SMALL), ("graph", STRICT)])
def test_devices_of_one_name_share_what_either_of_them_measured(
    habit: str, problem: str, libraries: dict[str, str], tmp_path: Path
) -> None:
    cases = cases_on_both_devices(habit, problem)
    results = run_online(tmp_path, *cases, **libraries, ONE_NAME="1")
    assert results.stderr.count("mucudnn: measuring ") == len(PASSES)
    assert journal_in(tmp_path).read_text().count("\ndevice ") == len(PASSES)
    check_results(cases, results, tmp_path)


THREADS = """
import ctypes, json, sys, threading
sys.path.insert(0, {folder!r})
import shim_client
library = ctypes.CDLL("libcudnn.so.9")

def work(case):
    shim_client.run(shim_client.Client(library), case)

threads = [threading.Thread(target=work, args=[case]) for case in json.loads({cases!r})]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def run_in_threads(cases: list[dict[str, Any]], folder: Path, **environment: str) -> str:
    """Run each case in a thread of its own in one program under the shim. Return its stderr."""
    program = THREADS.format(folder=str(shim_cases.CLIENT.parent), cases=json.dumps(cases))
    variables = {**online_in(folder), "MUCUDNN_LOG": "debug", **environment}
    ran = run(sys.executable, "-c", program, LD_PRELOAD=preload(SHIM), **variables)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


@pytest.mark.parametrize("habit", ["get", "graph"])
def test_devices_measure_different_kernels_at_the_same_time(
    habit: str, libraries: dict[str, str], tmp_path: Path
) -> None:
    cases = [case(STRICT, pass_, habit, device=device) for device, pass_ in enumerate(PASSES[:2])]
    said = run_in_threads(cases, tmp_path, **libraries, ONE_NAME="1", MEET="1")
    assert said.count("mucudnn: measuring ") == 2


@pytest.mark.parametrize("habit", ["get", "graph"])
def test_devices_that_ask_about_one_kernel_at_once_measure_it_once(
    habit: str, libraries: dict[str, str], tmp_path: Path
) -> None:
    cases = [case(STRICT, "forward", habit, device=device) for device in (0, 1)] * 2
    said = run_in_threads(cases, tmp_path, **libraries, ONE_NAME="1")
    assert said.count("mucudnn: measuring ") == 1
    assert "4 convolutions" in said
    assert "passed on: " not in said


def plan_for(device: str, path: Path, *, grouped: bool = False) -> Path:
    """Write a plan of three slices. `grouped` adds two groups of channels beside them."""
    version = ctypes.CDLL(host_library()).cudnnGetVersion()
    library = f"cuDNN {version // 10000}.{version // 100 % 100}.{version % 100}"
    header = {"engine": "cudnn", "device": f"{device}, compute capability 0.0", "library": library}
    parts = [(2, "IMPLICIT_GEMM", 1.0, 0)] * 3
    groups = [(4, parts), (2, parts)] if grouped else []
    kernel = (parse_descriptor(SMALL)[0], "forward", 1, parts, [parts], [], groups)
    path.write_text(format_plan(header, [kernel]))
    return path


def test_a_plan_is_followed_on_the_device_it_was_made_for(libraries: dict[str, str], tmp_path: Path) -> None:
    plan = plan_for(NAMES[0], tmp_path / "first.plan")
    cases = [case(SMALL, "forward", "fixed", device=device) for device in (0, 1, 0)]
    results = run_under_shim(cases, tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), **libraries)
    assert results.summary == (
        "2 of 3 convolutions divided, 1 passed through (the program brings a workspace of 0 bytes)"
    )
    assert f"its device is '{NAMES[0]}, compute capability 0.0', here it is '{NAMES[1]}" in results.stderr
    check_results(cases, results, tmp_path)


def test_the_copies_of_groups_of_channels_go_to_the_stream_of_the_call(
    libraries: dict[str, str], tmp_path: Path
) -> None:
    plan = plan_for(NAMES[0], tmp_path / "groups.plan", grouped=True)
    cases = [
        case(SMALL, "forward", "fixed", device=0, stream=stream, workspace=1 << 16) for stream in (64, 128)
    ]
    results = run_under_shim(
        cases, tmp_path, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), TRACE="1", **libraries
    )
    assert results.summary == "2 of 2 convolutions divided"
    # The slices of 4 of 6 channels are not aligned where they are. Those of 2 channels are not copied.
    assert re.findall(r"copy on stream (\w+)", results.stderr) == ["0x40"] * 3 + ["0x80"] * 3
    plain = [{**convolution, "stream": None} for convolution in cases]
    check_results(plain, results, tmp_path)


@pytest.mark.parametrize(("habit", "problem"), [("find_ex", SMALL), ("get", SMALL), ("graph", STRICT)])
def test_while_a_stream_is_captured_nothing_is_measured_and_afterwards_it_is(
    habit: str, problem: str, libraries: dict[str, str], tmp_path: Path
) -> None:
    cases = [case(problem, "forward", habit, capturing=on) for on in (1, 0, 1)]
    results = run_online(tmp_path, *cases, **libraries)
    assert results.stderr.count("mucudnn: measuring ") == 1
    assert re.search(r"\b1 (passed through \()?first seen at execution", results.summary)
    check_results(cases, results, tmp_path)


@pytest.mark.parametrize(("habit", "problem"), [("get", SMALL), ("graph", STRICT)])
def test_what_other_threads_capture_survives_that_a_kernel_is_measured(
    habit: str, problem: str, libraries: dict[str, str], tmp_path: Path
) -> None:
    cases = [case(problem, "forward", habit, others_capturing=1)]
    results = run_online(tmp_path, *cases, **libraries)
    assert results.stderr.count("mucudnn: measuring ") == 1
    check_results(cases, results, tmp_path)

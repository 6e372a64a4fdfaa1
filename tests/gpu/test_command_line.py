"""The command line on a GPU: measure, decide, plan, describe the device."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
from gpu_engine import ON_GPU, engine_environment
from programs import environment

from mucudnn._native import Engine
from mucudnn.planner import read_properties

pytestmark = pytest.mark.gpu

KERNEL = "mb8_ic16ih14_oc16_kh3_ph1"
# What follows from the chip, not from the board, its clocks or its driver.
CHIP = (
    "deviceVer", "maxSharedMemoryPerBlockOptin", "maxGridSize", "maxBlockSize", "regsPerBlock", "warpSize",
    "maxSharedMemoryPerBlock", "reservedSharedMemoryPerBlock", "maxRegistersPerSM", "maxCtasPerSM",
    "maxThreadsPerBlock", "maxThreadsPerSM", "multiProcessorCount",
)  # fmt: skip


def mucudnn(*arguments: str | Path, code: int = 0) -> str:
    """What it says on stdout."""
    ran = subprocess.run(
        [sys.executable, "-m", "mucudnn", *map(str, arguments)],
        env=environment(**engine_environment()),
        capture_output=True,
        text=True,
        check=False,
        timeout=170,
    )
    assert ran.returncode == code, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


@pytest.mark.parametrize(
    "flags", [("--dtype", "bf16"), ("--math", "tf32"), ("--layout", "nhwc", "--dtype", "f16")]
)
def test_it_measures_decides_runs_and_measures_nothing_the_second_time(flags: tuple[str, ...]) -> None:
    command = (
        "optimize",
        KERNEL,
        "--engine",
        "cudnn",
        "--passes",
        "all",
        "--workspace",
        "256KiB",
        *flags,
        "--json",
    )
    first, second = json.loads(mucudnn(*command)), json.loads(mucudnn(*command))
    assert first["engine"] == "cudnn"
    assert (first["new_measurements"] > 0, second["new_measurements"]) == (True, 0)
    for kernel in first["kernels"]:
        measured = kernel["measured"]
        assert kernel["divided"]["workspace"] <= 2**18
        assert measured["divided_ms"] > 0
        assert measured["error"] <= 2 * measured["same_algorithms_error"] + 2.0**-7
    assert [k["divided"] for k in first["kernels"]] == [k["divided"] for k in second["kernels"]]


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert json.loads(mucudnn("optimize", KERNEL, "--engine", "auto", "--json"))["engine"] == "cudnn"


def test_one_total_is_divided_among_kernels() -> None:
    command = (
        "optimize",
        KERNEL,
        "--engine",
        "cudnn",
        "--passes",
        "all",
        "--total-workspace",
        "512KiB",
        "--json",
    )
    result = json.loads(mucudnn(*command))
    assert result["total"]["workspace"] <= 2**19


def test_a_plan_is_written_shown_and_verified(tmp_path: Path) -> None:
    plan = tmp_path / "a.plan"
    mucudnn("optimize", KERNEL, "--engine", "cudnn", "--workspace", "256KiB", "--no-run", "--output", plan)
    assert KERNEL.split("_")[0] in mucudnn("plan", "show", plan)
    mucudnn("plan", "verify", plan, "--engine", "cudnn")


def test_the_doctor_finds_that_it_works_here() -> None:
    said = mucudnn("doctor", *(["torch"] if ON_GPU else []))
    assert "does not work" not in said
    assert "works: a child process under mucudnn run" in said


def test_the_device_describes_itself_as_the_one_of_its_name_that_is_bundled(
    only_on_gpu: None, tmp_path: Path, engine: Engine, record_property: object
) -> None:
    file = tmp_path / "device.json"
    mucudnn("doctor", "--write-device-properties", file)
    described = json.loads(file.read_text())
    bundled = {
        json.loads(entry.read_text())["deviceName"]: json.loads(entry.read_text())
        for entry in (resources.files("mucudnn") / "device_properties").iterdir()
        if entry.name.endswith(".json")
    }
    own = bundled.get(described["deviceName"], json.loads(read_properties("h200")))
    assert described.keys() >= own.keys()
    if described["deviceName"] in bundled:
        assert {key: described[key] for key in CHIP} == {key: own[key] for key in CHIP}


def test_planning_for_this_device_needs_no_description_of_another(only_on_gpu: None, tmp_path: Path) -> None:
    file, cache = tmp_path / "device.json", tmp_path / "planned.sqlite"
    mucudnn("doctor", "--write-device-properties", file)
    del cache
    mucudnn("benchmark", KERNEL, "--dtype", "f16", "--device-properties", file)

"""The command line measures, decides, plans and describes the device on a GPU."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import predict_longer
from gpu_engine import HAS_CUDA, engine_environment
from programs import run

from mucudnn.measuring.described_device import bundled_devices, read_properties

pytestmark = pytest.mark.gpu

KERNEL = "mb8_ic16ih14_oc16_kh3_ph1"
# The properties that depend on the chip alone, not on the board, its clocks or its driver.
CHIP = (
    "deviceVer", "maxSharedMemoryPerBlockOptin", "maxGridSize", "maxBlockSize", "regsPerBlock", "warpSize",
    "maxSharedMemoryPerBlock", "reservedSharedMemoryPerBlock", "maxRegistersPerSM", "maxCtasPerSM",
    "maxThreadsPerBlock", "maxThreadsPerSM", "multiProcessorCount",
)  # fmt: skip


def mucudnn(*arguments: str | Path) -> str:
    """Run a command that succeeds. Return its stdout."""
    ran = run(sys.executable, "-m", "mucudnn", *arguments, **engine_environment())
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


def optimize(*flags: str) -> dict[str, Any]:
    """Run `mucudnn optimize --json` for the test's kernel in all three passes, and return the parsed JSON."""
    command = ("optimize", KERNEL, "--engine", "cudnn", *flags, "--json")
    result: dict[str, Any] = json.loads(mucudnn(*command))
    return result


@pytest.mark.parametrize(
    "flags", [("--dtype", "bf16"), ("--math", "tf32"), ("--layout", "nhwc", "--dtype", "f16")]
)
def test_it_measures_decides_runs_and_measures_nothing_the_second_time(flags: tuple[str, ...]) -> None:
    first, second = (optimize("--workspace", "256KiB", *flags) for _ in range(2))
    assert first["engine"] == "cudnn"
    assert (first["new_measurements"] > 0, second["new_measurements"]) == (True, 0)
    for kernel in first["kernels"]:
        measured = kernel["measured"]
        assert kernel["divided"]["workspace"] <= 2**18
        assert measured["divided_ms"] > 0
    assert [k["divided"] for k in first["kernels"]] == [k["divided"] for k in second["kernels"]]


def test_auto_is_the_gpu_where_there_is_one() -> None:
    assert json.loads(mucudnn("optimize", KERNEL, "--engine", "auto", "--json"))["engine"] == "cudnn"


def test_one_total_is_divided_among_kernels() -> None:
    assert optimize("--total-workspace", "512KiB")["total"]["workspace"] <= 2**19


def test_a_plan_is_written_shown_and_verified(tmp_path: Path) -> None:
    plan = tmp_path / "a.plan"
    mucudnn("optimize", KERNEL, "--engine", "cudnn", "--workspace", "256KiB", "--no-run", "--output", plan)
    assert KERNEL.split("_")[0] in mucudnn("plan", "show", plan)
    predict_longer(plan)
    mucudnn("plan", "verify", plan)


def test_the_doctor_finds_that_it_works_here() -> None:
    said = mucudnn("doctor", *(["torch"] if HAS_CUDA else []))
    assert "does not work" not in said
    assert "works: a child process under mucudnn run" in said


def properties(name: str) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(read_properties(name))
    return described


def test_the_device_describes_itself_as_the_one_of_its_name_that_is_bundled(
    only_on_gpu: None, tmp_path: Path
) -> None:
    file = tmp_path / "device.json"
    mucudnn("doctor", "--write-device-properties", file)
    own = properties(str(file))
    assert own.keys() >= set(CHIP)
    bundled = {described["deviceName"]: described for described in map(properties, bundled_devices())}
    described = bundled.get(own["deviceName"], own)
    assert {key: own[key] for key in CHIP} == {key: described[key] for key in CHIP}
    mucudnn("optimize", KERNEL, "--dtype", "f16", "--device-properties", file)

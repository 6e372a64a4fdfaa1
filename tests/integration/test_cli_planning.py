"""`mucudnn optimize --device-properties` plans without a GPU; no command takes its rows for measurements."""

import json
import re
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from programs import run

from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import ENUMERATION, MEASUREMENT
from mucudnn.measuring.described_device import bundled_devices, read_properties

KERNEL = "f16:mb16_ic64ih56_oc64_kh3_ph1"
Mucudnn = Callable[..., CompletedProcess[str]]


def mucudnn(*arguments: str, **environment: str) -> CompletedProcess[str]:
    return run(sys.executable, "-m", "mucudnn", *arguments, LD_PRELOAD="", **environment)


@pytest.fixture
def on_nvidia(cudnn: Path, stubs: Path, tmp_path: Path) -> Mucudnn:
    """Return a function that runs mucudnn with NVIDIA's library and a cache of its own."""
    environment = {"LD_LIBRARY_PATH": f"{cudnn}:{stubs}", "MUCUDNN_CACHE": str(tmp_path / "cache.sqlite")}

    def on_nvidia(*arguments: str) -> CompletedProcess[str]:
        return mucudnn(*arguments, **environment)

    return on_nvidia


def test_it_prints_workspaces_and_records_the_engines_that_can_run(
    on_nvidia: Mucudnn, tmp_path: Path
) -> None:
    ran = on_nvidia("optimize", KERNEL, "--device-properties", "h200")
    assert ran.returncode == 0, ran.stderr
    assert "NVIDIA H200, compute capability 9.0, 132 multiprocessors, described, cuDNN 9." in ran.stdout
    assert "cuDNN plans its legacy algorithms on a GPU only" in ran.stdout
    with Cache.read_only(tmp_path / "cache.sqlite") as cache:
        rows = cache.select(ENUMERATION)
        statuses = {row["status"] for row in cache.select(MEASUREMENT)}
    assert {row["engine"] for row in rows} == {"planned"}
    divided = product({"forward", "backward_data"}, {1, 2, 4, 8, 16})
    listed = {(row["pass"], row["micro_batch"]) for row in rows}
    assert listed == {*divided, ("backward_filter", 16)}
    assert all(re.fullmatch(r"(eng\w*[\w=.]*:\d+:[\w,]* ?)+", row["candidates"]) for row in rows)
    assert "CUDNN_STATUS_SUCCESS" not in statuses


def test_the_second_time_nothing_is_planned(on_nvidia: Mucudnn) -> None:
    command = ("optimize", KERNEL, "--inference", "--device-properties", "a100")
    first, second = on_nvidia(*command), on_nvidia(*command)
    assert (first.returncode, second.returncode) == (0, 0)
    assert "\n5 new enumerations on NVIDIA A100" in first.stdout
    assert "\n0 new enumerations on NVIDIA A100" in second.stdout
    table = second.stdout.split("\n\n")[0]
    assert first.stdout.startswith(table)


def test_planned_workspaces_decide_nothing(on_nvidia: Mucudnn, tmp_path: Path) -> None:
    assert (
        on_nvidia(
            "optimize", KERNEL, "--inference", "--dtype", "f32", "--device-properties", "h200"
        ).returncode
        == 0
    )
    replayed = on_nvidia("optimize", KERNEL, "--dtype", "f32", "--replay", str(tmp_path / "cache.sqlite"))
    assert (replayed.returncode, replayed.stdout) == (1, "")
    assert replayed.stderr.strip().endswith("cache.sqlite has no measurements")
    (machine,) = json.loads(on_nvidia("cache", "info", "--json").stdout)["machines"]
    assert machine["device"].startswith("NVIDIA H200")
    numbers = [machine[key] for key in ("threads", "enumerations", "measurements", "comparisons")]
    assert numbers == [1, 5, 0, 0]
    assert machine["failures"] > 0  # the engines on tensor cores, which fp32 does not allow


def test_properties_that_cudnn_refuses_are_reported_in_one_line(on_nvidia: Mucudnn, tmp_path: Path) -> None:
    described = json.loads(read_properties("h200"))
    del described["l2CacheSize"]
    file = tmp_path / "less.json"
    file.write_text(json.dumps(described))
    ran = on_nvidia("optimize", KERNEL, "--device-properties", str(file))
    assert (ran.returncode, ran.stdout) == (4, "")
    (line,) = ran.stderr.splitlines()
    assert line.startswith("mucudnn: cannot plan without a GPU: reading the device's properties failed with")


@pytest.mark.parametrize(
    ("properties", "more", "code", "text"),
    [
        ("h300", (), 2, "'h300' is neither a file nor one of the described devices: a100, h100, h200"),
        ("h200", ("--engine", "host"), 4, "the host engine knows only this machine"),
        ("h200", ("--engine", "/nowhere.so"), 4, "cannot load '/nowhere.so'"),
        ("h200", ("--measure-only",), 2, "not allowed with argument"),
    ],
)
def test_an_impossible_request_says_why(properties: str, more: tuple[str, ...], code: int, text: str) -> None:
    ran = mucudnn("optimize", KERNEL, "--device-properties", properties, *more)
    assert (ran.returncode, ran.stdout) == (code, "")
    assert text in ran.stderr.splitlines()[-1]


def test_a_missing_cublas_is_named_with_the_package_that_has_it(cudnn: Path) -> None:
    # cuDNN ends a process that has no cuBLAS. The program hides installed packages, which may have it.
    program = f"""
import sys
from mucudnn.measuring import described_device as planner
from mucudnn.cli import main
planner.installed = lambda path: []
sys.exit(main(["optimize", "{KERNEL}", "--device-properties", "h200"]))
"""
    ran = run(sys.executable, "-c", program, LD_LIBRARY_PATH=str(cudnn), LD_PRELOAD="")
    assert (ran.returncode, ran.stdout) == (4, "")
    line = ran.stderr.splitlines()[-1]
    assert line.startswith("mucudnn: ")
    # A newer cuDNN looks for the driver's library first.
    assert "pip install nvidia-cublas" in line or "libcuda.so.1 of NVIDIA's driver" in line


def test_a_doctor_without_a_gpu_writes_no_properties(tmp_path: Path) -> None:
    file = tmp_path / "device.json"
    ran = mucudnn("doctor", "--write-device-properties", str(file), MUCUDNN_LIBRARY="/nowhere.so")
    assert (ran.returncode, ran.stdout) == (4, "")
    assert ran.stderr.startswith("mucudnn: no cuDNN device: ")
    assert not file.exists()


def test_every_bundled_device_is_described_in_full() -> None:
    keys = [sorted(json.loads(read_properties(name))) for name in bundled_devices()]
    assert {"a100", "h100", "h200"} <= set(bundled_devices())
    assert all(of == keys[0] for of in keys)

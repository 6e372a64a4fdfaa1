"""`mucudnn cache list` shows the choices that the measurements in the cache lead to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mucudnn._native import parse_descriptor
from mucudnn.cli import main
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.records import FRAMEWORK, STOCK, STOCK_SLICE, SUCCESS, Machine, Measurement
from mucudnn.problems.kernels import Kernel

KERNEL = Kernel(parse_descriptor("mb8_ic4ih5_oc4_kh3")[0], "forward")
ENGINE = Machine("host", "a device", "mucudnn-host 1.0", 2)
PYTORCH = Machine(FRAMEWORK, "a device", "PyTorch 2.13", 2)
MB = 2**20


def row(size: int, algorithm: str, ms: float, workspace: int = 0, tries: int = 0) -> Measurement:
    return Measurement(size, algorithm, SUCCESS, workspace, "", ms, busy_tries=tries)


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["cache", "list", *words]) == 0
    out = capsys.readouterr().out
    return json.loads(out)["kernels"] if words else out


def fill(path: Path, rows: list[Measurement], stock: list[Measurement]) -> None:
    with Cache.open(path) as cache:
        for machine, own in ((ENGINE, rows), (PYTORCH, stock)):
            for measured in own:
                cache.add(machine, KERNEL, measured)


@pytest.mark.parametrize(
    ("rows", "stock", "way", "configuration", "ms"),
    [
        ([row(8, "A", 9.0), row(4, "A", 2.0)], [row(8, STOCK, 8.0)], "divided", "2×4 A", 4.0),
        ([row(8, "A", 3.0), row(4, "A", 2.0)], [row(8, STOCK, 8.0)], "by another algorithm", "1×8 A", 3.0),
        ([row(8, "A", 3.0)], [row(8, STOCK, 2.5)], "left to PyTorch", "1×8 STOCK", 2.5),
        ([row(8, "A", 3.0)], [row(8, STOCK, 3.5), row(2, STOCK_SLICE, 0.5)], "divided", "4×2 STOCK", 2.0),
        ([row(8, "A", 1.0, 100 * MB), row(8, "B", 3.0)], [], "by another algorithm", "1×8 B", 3.0),
    ],
)
def test_each_kernel_has_its_choice(
    rows: list[Measurement],
    stock: list[Measurement],
    way: str,
    configuration: str,
    ms: float,
    cache_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(cache_path, rows, stock)
    choices = [each["choice"] for each in listed(capsys, "--json") if each["library"] == ENGINE.library]
    assert choices == [
        {"mini_batch": 8, "way": way, "configuration": configuration, "time_ms": ms, "is_busy": False}
    ]
    text = listed(capsys)
    assert configuration in text
    assert f"1 {way}" in text
    assert "0 of them from a busy machine" in text


def test_the_limit_of_the_settings_applies(
    cache_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cache_path, [row(8, "A", 1.0, 100 * MB), row(8, "B", 3.0)], [])
    monkeypatch.setenv("MUCUDNN_WORKSPACE_LIMIT", "none")
    assert listed(capsys, "--json")[0]["choice"]["configuration"] == "1×8 A"


@pytest.mark.parametrize(("tries", "state"), [(0, "1.00"), (2, "1.00  yes")])
def test_a_choice_from_a_busy_machine_is_marked(
    tries: int, state: str, cache_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(cache_path, [row(8, "A", 1.0, tries=tries), row(8, "B", 2.0, tries=2)], [])
    text = listed(capsys)
    (line,) = [line for line in text.splitlines() if "1×8 A" in line]
    assert line.rstrip().endswith(state)
    assert f"{int(tries > 0)} of them from a busy machine" in text


def test_kernels_without_times_have_no_choice(cache_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(cache_path, [Measurement(8, "A", "CUDNN_STATUS_NOT_SUPPORTED", 0)], [row(8, STOCK, 1.0)])
    assert [each["choice"] for each in listed(capsys, "--json")] == [None, None]
    assert default_path() == cache_path

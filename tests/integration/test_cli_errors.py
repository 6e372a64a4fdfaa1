"""Bad input gets one clear line on stderr, nothing on stdout, and the exit code of its kind."""

import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from cached_rows import change_rows
from command_line import Capture, failure_of

from mucudnn.cli import main
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import FORMAT, MEASUREMENT

pytestmark = pytest.mark.usefixtures("cache_path")

GOOD = "mb4_ic4ih8_oc4_kh3"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("optimize", "resnet5"), "did you mean resnet50"),
        (("optimize", "nothing-like-it"), "alexnet, alexnet-2014, convnext, cosmoflow, deepbench"),
        (("optimize", "my.txt"), "there is no file 'my.txt'"),
        (("optimize", "/tmp"), "'/tmp' is a folder"),
        (("optimize", "ic4ih8_oc4_kh3_zz1"), "zz1"),
        (("optimize", "ic4ih8_oc4_kh3", "--batch", "0"), "the mini-batch must be from 1"),
        (("optimize", "mb0_ic4ih8_oc4_kh3"), "mini-batch (mb) is 0"),
        (("optimize", GOOD, "--workspace", "12XB"), "'12XB' is not a size"),
        (("optimize", GOOD, "--workspace", "64"), "'64' has no unit: write 64MiB"),
        (("optimize", GOOD, "--workspace", "1B", "--total-workspace", "1B"), "not allowed with"),
        (("optimize", "nowhere:build", "--input", "1x3x8x8"), "No module named 'nowhere'"),
        (("optimize", "math:no", "--input", "1x3x8x8"), "no attribute 'no'"),
        (("optimize", "resnet50", "--input", "1x3x8y8"), "'1x3x8y8' is not a shape"),
        (("optimize", GOOD, "--input", "1x3x8x8"), "--input is for a model"),
        (("optimize", GOOD, "--dtype", "f8"), "'f8'"),
        (("optimize", GOOD, "--batch-policy", "some"), "'some'"),
        (("optimize", GOOD, "--threads", "0"), "'0' is not a number of threads"),
        (("optimize",), "required"),
        (("optimise",), "there is no 'optimise': did you mean optimize?"),
        ((), "required"),
    ],
)
def test_invalid_arguments_are_usage_errors(arguments: tuple[str, ...], part: str, capsys: Capture) -> None:
    code, line = failure_of(capsys, *arguments)
    assert code == 2
    assert part in line


def test_a_line_of_a_file_is_named(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "network.txt"
    file.write_text("ic4ih8_oc4_kh3\n\nic4ih8_oc4_kx3\n")
    code, line = failure_of(capsys, "optimize", str(file))
    assert code == 2
    assert f"{file}, line 3: 'kx3'" in line


@pytest.mark.parametrize("engine", ["/no/such/library.so", __file__])
def test_a_missing_engine_is_exit_code_4(engine: str, capsys: Capture) -> None:
    code, line = failure_of(capsys, "optimize", GOOD, "--engine", engine)
    assert code == 4
    assert engine in line


def hungry_cache(path: Path) -> None:
    """Measure into the cache, then change its rows so that every algorithm needs workspace."""
    assert main(["optimize", "--measure-only", GOOD]) == 0
    with Cache.open(path) as cache:
        change_rows(cache, MEASUREMENT, lambda row: {"workspace": row["workspace"] + 1000})


@pytest.mark.parametrize("limit", ["--workspace", "--total-workspace"])
def test_a_limit_that_nothing_fits_is_exit_code_3(limit: str, cache_path: Path, capsys: Capture) -> None:
    hungry_cache(cache_path)
    capsys.readouterr()
    arguments = "optimize", GOOD, "--inference", limit, "10B", "--replay", str(cache_path)
    code, line = failure_of(capsys, *arguments)
    assert code == 3
    assert "nothing fits 10 B of workspace" in line
    assert "1000 bytes" in line
    assert "mb4_ic4ih8_oc4_kh3 forward" in line


def test_a_cache_or_plan_of_a_newer_version_is_exit_code_5(
    cache_path: Path, tmp_path: Path, capsys: Capture
) -> None:
    Cache.open(cache_path).__exit__()
    database = sqlite3.connect(cache_path)
    database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    assert failure_of(capsys, "optimize", GOOD)[0] == 5
    assert failure_of(capsys, "cache", "info")[0] == 5
    plan = tmp_path / "new.plan"
    plan.write_text("mucudnn plan 99\n")
    assert failure_of(capsys, "plan", "show", str(plan))[0] == 5


def test_a_replay_from_nothing_is_reported_in_one_line(
    cache_path: Path, tmp_path: Path, capsys: Capture
) -> None:
    code, line = failure_of(capsys, "optimize", GOOD, "--replay", str(tmp_path / "missing"))
    assert (code, "missing" in line) == (1, True)
    Cache.open(cache_path).__exit__()
    code, line = failure_of(capsys, "optimize", GOOD, "--replay", str(cache_path))
    assert (code, "no measurements" in line) == (1, True)


def test_an_interrupt_says_that_what_was_measured_is_kept(
    cache_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, added = Cache.add, []

    def interrupted(self: Cache, *arguments: Any) -> None:
        add(self, *arguments)
        added.append(arguments)
        if len(added) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Cache, "add", interrupted)
    assert main(["optimize", GOOD]) == 130
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == f"mucudnn: interrupted: what was measured is kept in {cache_path}"
    with Cache.read_only(cache_path) as cache:
        for machine, kernel, row in added:
            kept = {(known.micro_batch, known.algorithm) for known in cache.measurements(machine, kernel)}
            assert (row.micro_batch, row.algorithm) in kept


def test_version_and_help_are_not_errors(capsys: Capture) -> None:
    for flag in ("--version", "--help"):
        with pytest.raises(SystemExit) as caught:
            main([flag])
        assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("mucudnn ")


def test_an_interrupt_while_a_command_is_loaded_is_reported_in_one_line(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mucudnn.cli.import_module", interrupted)
    assert failure_of(capsys, "optimize", GOOD) == (130, "mucudnn: interrupted")

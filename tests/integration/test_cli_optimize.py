import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import Capture

from mucudnn.cli import main
from mucudnn.costs.schema import FORMAT
from mucudnn.output.text import milliseconds
from mucudnn.plans.any_plan import read_plan

pytestmark = pytest.mark.usefixtures("cache_path")

NETWORK = """\
# two small layers
ic8ih14_oc8_kh3_ph1_n"conv1*1"
ic8ih14_oc16_kh1_n"conv2*2"
"""


@pytest.fixture
def network(tmp_path: Path) -> str:
    file = tmp_path / "small.txt"
    file.write_text(NETWORK)
    return str(file)


def run(*arguments: str) -> None:
    assert main(arguments) == 0


def run_json(capsys: Capture, *arguments: str) -> dict[str, Any]:
    run(*arguments, "--json")
    parsed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return parsed


def test_optimize_measures_decides_runs_and_writes_a_plan(
    network: str, tmp_path: Path, capsys: Capture
) -> None:
    plan = tmp_path / "small.plan"
    run("optimize", network, "--inference", "--batch", "8", "--workspace", "64KiB", "--output", str(plan))
    captured = capsys.readouterr()
    measuring, written = captured.err.splitlines()
    assert re.fullmatch(r"Measuring up to \d+ times for 2 kernels, in about .* of memory", measuring)
    assert written == f"Wrote {plan}"
    lines = captured.out.splitlines()
    assert "within 64 KiB of workspace for each kernel" in lines[0]
    assert lines[-1] == f"Next: mucudnn plan show {plan}"
    table = lines[3 : lines.index("", 3)]
    assert table[2].startswith("conv1 ")
    assert table[3].startswith("conv2 ×2 ")
    assert max(map(len, table)) <= 100
    assert [kernel.count for kernel in read_plan(plan).kernels] in ([1, 2], [2, 1])

    run("plan", "show", str(plan))
    shown = capsys.readouterr().out
    assert "mb8_ic8ih14_oc8_kh3_ph1" in shown
    assert "workspace_limit: 64KiB" in shown


def test_each_time_says_whether_it_is_measured_or_predicted(
    network: str, tmp_path: Path, capsys: Capture
) -> None:
    plan = tmp_path / "small.plan"
    run("optimize", network, "--batch", "8")
    assert "Times are of whole runs. A plan keeps the predicted ones" in capsys.readouterr().out
    run("optimize", network, "--batch", "8", "--no-run", "--output", str(plan))
    predicted = capsys.readouterr().out
    assert "Times are predicted" in predicted
    run("plan", "show", str(plan))
    shown = capsys.readouterr().out
    assert "predicted ms" in shown
    for kernel in read_plan(plan).kernels:
        time = milliseconds(kernel.chosen.time_ms)
        assert f" {time} " in predicted
        assert f" {time} " in shown


def test_the_next_command_repeats_the_flags(network: str, capsys: Capture) -> None:
    run("optimize", network, "--batch", "2", "--total-workspace", "1MiB", "--no-run")
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"Next: mucudnn optimize {network} --batch 2 --total-workspace 1MiB --no-run --output small.plan"
    )


def test_a_replay_needs_no_engine(network: str, tmp_path: Path, capsys: Capture) -> None:
    arguments = ("optimize", network, "--batch", "4", "--workspace", "1MiB")
    decided = run_json(capsys, *arguments, "--no-run")
    replayed = run_json(
        capsys, *arguments, "--replay", str(tmp_path / "cache.sqlite"), "--engine", "/no/engine"
    )
    assert replayed == {**decided, "new_measurements": 0}


def test_flags_and_descriptor_agree_on_the_problem(capsys: Capture) -> None:
    result = run_json(
        capsys, "optimize", "f16:nhwc:mb3_ic4ih8_oc4_kh3", "--inference", "--math", "fma", "--no-run"
    )
    (kernel,) = result["kernels"]
    assert kernel["problem"] == "f16:nhwc:fma:g1mb3_ic4ih8iw8_oc4oh6ow6_kh3kw3_sh1sw1_ph0pw0_dh0dw0"
    assert sum(part["times"] * part["micro_batch"] for part in kernel["divided"]["parts"]) == 3


def test_the_environment_gives_defaults_that_flags_override(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_WORKSPACE_LIMIT", "3MiB")
    monkeypatch.setenv("MUCUDNN_BATCH_POLICY", "undivided")
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")
    monkeypatch.setenv("MUCUDNN_THREADS", "2")
    arguments = ("optimize", "mb4_ic4ih8_oc4_kh3", "--no-run")
    result = run_json(capsys, *arguments)
    assert (result["workspace_limit"], result["policy"], result["threads"]) == (3 * 2**20, "undivided", 2)
    flags = ("--workspace", "none", "--batch-policy", "all", "--threads", "1")
    result = run_json(capsys, *arguments, *flags)
    assert (result["workspace_limit"], result["policy"], result["threads"]) == (None, "all", 1)


def test_measuring_alone_fills_the_cache_that_the_cache_command_shows(
    network: str, tmp_path: Path, capsys: Capture
) -> None:
    run("cache", "info")
    assert "does not exist yet" in capsys.readouterr().out
    run("optimize", "--measure-only", network, "--batch", "4")
    captured = capsys.readouterr()
    assert "micro-batch" in captured.out
    assert captured.out.splitlines()[-1] == f"Next: mucudnn optimize {network} --batch 4"

    run("cache", "info")
    shown = capsys.readouterr().out
    assert shown.startswith(f"{tmp_path / 'cache.sqlite'}: ")
    assert f"version {FORMAT}" in shown
    run("cache", "list")
    listed = capsys.readouterr().out
    assert "ic8ih14_oc8_kh3_ph1" in listed
    assert "ic8ih14_oc16_kh1" in listed

    assert run_json(capsys, "optimize", network, "--batch", "4", "--no-run")["new_measurements"] == 0

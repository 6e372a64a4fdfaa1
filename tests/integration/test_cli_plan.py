"""`mucudnn plan` shows a plan, verifies it on this machine, and compares two plans."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Capture, error_of, json_of, output_of, predict_longer
from programs import library_that_leaves_a_trace

from mucudnn._native import host_library
from mucudnn.cli import main
from mucudnn.plans import verify
from mucudnn.plans.any_plan import read_plan
from mucudnn.plans.plan import Plan, write_plan
from mucudnn.solver import ChannelGroup, ChannelGroups, Configuration, MicroConfiguration

pytestmark = pytest.mark.usefixtures("cache_path")


@pytest.fixture
def plan_path(tmp_path: Path, capsys: Capture) -> Path:
    path = tmp_path / "small.plan"
    assert (
        main(
            [
                "optimize",
                "mb4_ic8ih14_oc8_kh3_ph1",
                "--inference",
                "--no-run",
                "--thorough",
                "--output",
                str(path),
            ]
        )
        == 0
    )
    capsys.readouterr()
    return path


def with_choice(plan: Plan, *parts: MicroConfiguration) -> Plan:
    (kernel,) = plan.kernels
    chosen = Configuration(parts)
    return replace(plan, kernels=(replace(kernel, chosen=chosen, desirable=(chosen,)),))


def test_a_plan_of_this_machine_holds(plan_path: Path, capsys: Capture) -> None:
    predict_longer(plan_path)
    assert "1 of 1 kernels hold." in output_of(capsys, ["plan", "verify", str(plan_path)])
    assert main(["plan", "verify", "--no-run", str(plan_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 kernels hold."


def test_a_plan_of_another_machine_does_not_hold(plan_path: Path, capsys: Capture) -> None:
    plan = read_plan(plan_path)
    write_plan(replace(plan, header={**plan.header, "device": "an abacus"}), plan_path)
    (line,) = error_of(capsys, ["plan", "verify", str(plan_path)], 1).splitlines()
    assert "the plan's device is 'an abacus', this one is '" in line


def test_a_plan_cannot_name_a_library_to_open(plan_path: Path, tmp_path: Path, capsys: Capture) -> None:
    library, trace = library_that_leaves_a_trace(tmp_path)
    plan = read_plan(plan_path)
    write_plan(replace(plan, header={**plan.header, "engine": str(library)}), plan_path)
    (line,) = error_of(capsys, ["plan", "verify", str(plan_path)], 1).splitlines()
    assert f"names the engine '{library}': a plan can only name host or cudnn" in line
    assert "give --engine PATH" in line
    assert not trace.exists()


def test_the_command_line_can_name_the_library_that_verifies(plan_path: Path, capsys: Capture) -> None:
    plan = read_plan(plan_path)
    write_plan(replace(plan, header={**plan.header, "engine": "./absent.so"}), plan_path)
    assert main(["plan", "verify", "--no-run", "--engine", host_library(), str(plan_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 1 kernels hold."


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        (MicroConfiguration(4, "GUESSING", 1.0, 0), "the library has no algorithm GUESSING any more"),
        (MicroConfiguration(4, "DIRECT", 1.0, 0), "DIRECT at 4 fails with CUDNN_STATUS_NOT_SUPPORTED"),
        (MicroConfiguration(4, "WINOGRAD_NONFUSED", 1.0, 10), "of workspace, but the plan allows 10 B"),
    ],
)
def test_a_choice_that_cannot_run_as_planned_does_not_hold(
    plan_path: Path, part: MicroConfiguration, complaint: str, capsys: Capture
) -> None:
    write_plan(with_choice(read_plan(plan_path), part), plan_path)
    assert main(["plan", "verify", str(plan_path)]) == 1
    captured = capsys.readouterr()
    assert complaint in captured.out
    assert captured.err == "mucudnn: 1 of the plan's 1 kernels do not hold any more\n"


def test_a_choice_that_takes_longer_does_not_hold(
    plan_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = with_choice(read_plan(plan_path), MicroConfiguration(4, "IMPLICIT_GEMM", 1.0, 0))
    write_plan(plan, plan_path)
    monkeypatch.setattr(verify, "_time_choice", lambda *_: ([1.5] * 9, False))
    assert main(["plan", "verify", str(plan_path)]) == 1
    captured = capsys.readouterr()
    assert "1 of the plan's 1 kernels take longer than planned" in captured.err
    (row,) = [line for line in captured.out.splitlines() if "×4 IMPLICIT_GEMM" in line]
    assert row.split()[-3:] == ["1.00", "1.50", "slower"]
    assert main(["plan", "verify", str(plan_path), "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["holds"]


@pytest.mark.parametrize(
    ("times", "is_busy"), [([1.5] * 9, True), ([1.5] * 2, False), ([1.2, 1.3] * 5, False)]
)
def test_times_that_show_nothing_leave_a_choice_undecided(
    times: list[float], is_busy: bool, plan_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(with_choice(read_plan(plan_path), MicroConfiguration(4, "IMPLICIT_GEMM", 1.0, 0)), plan_path)
    monkeypatch.setattr(verify, "_time_choice", lambda *_: (times, is_busy))
    *_, undecided, held = output_of(capsys, ["plan", "verify", str(plan_path)]).splitlines()
    assert undecided.startswith("1 of 1 kernels are undecided: ")
    assert held == "0 of 1 kernels hold."
    content = json_of(capsys, ["plan", "verify", str(plan_path), "--json"])
    assert (content["holds"], content["kernels"][0]["result"]) == (None, "undecided")


@pytest.mark.parametrize(("planned_ms", "now_ms"), [(1.0, 1.2), (0.1, 0.15)])
def test_a_difference_that_the_caches_explain_is_not_slower(
    planned_ms: float, now_ms: float, plan_path: Path
) -> None:
    planned = with_choice(read_plan(plan_path), MicroConfiguration(4, "IMPLICIT_GEMM", planned_ms, 0))
    times = [now_ms] * 8 + [100.0]  # one slow run decides nothing
    assert verify.KernelCheck(planned.kernels[0], (), times).result == "holds"


def test_a_choice_that_takes_as_long_as_planned_is_not_marked(plan_path: Path, capsys: Capture) -> None:
    write_plan(with_choice(read_plan(plan_path), MicroConfiguration(4, "IMPLICIT_GEMM", 1e9, 0)), plan_path)
    assert "slower" not in output_of(capsys, ["plan", "verify", str(plan_path)])


def test_tiles_of_a_plan_are_shown_and_verified(plan_path: Path, tmp_path: Path, capsys: Capture) -> None:
    plan, other = read_plan(plan_path), tmp_path / "other.plan"
    tiles = [MicroConfiguration(1, "IMPLICIT_GEMM.tile=7", 0.5, 2**16)] * 4
    write_plan(with_choice(plan, *tiles), other)
    assert main(["plan", "show", str(other)]) == 0
    tiled = next(line for line in capsys.readouterr().out.splitlines() if "in tiles of" in line)
    assert "4×1 IMPLICIT_GEMM in tiles of 7" in tiled
    assert "2.00" in tiled  # milliseconds of four samples
    predict_longer(other)
    assert "1 of 1 kernels hold." in output_of(capsys, ["plan", "verify", str(other)])


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        (
            MicroConfiguration(4, "GUESSING.tile=7", 1.0, 2**20),
            "GUESSING.tile=7 at 4 cannot run: the legacy API has no algorithm 'GUESSING'",
        ),
        (
            MicroConfiguration(4, "IMPLICIT_GEMM.tile=14", 1.0, 2**20),
            "a sample of 14 steps is not divided into tiles of 14",
        ),
        (MicroConfiguration(4, "IMPLICIT_GEMM.tile=7", 1.0, 10), "IMPLICIT_GEMM.tile=7 at 4 needs"),
    ],
)
def test_tiles_that_cannot_run_as_planned_do_not_hold(
    plan_path: Path, part: MicroConfiguration, complaint: str, capsys: Capture
) -> None:
    write_plan(with_choice(read_plan(plan_path), part), plan_path)
    assert complaint in output_of(capsys, ["plan", "verify", "--no-run", str(plan_path)], 1)


def with_groups(plan: Plan, *parts: MicroConfiguration) -> Plan:
    (kernel,) = plan.kernels
    groups = ChannelGroups((ChannelGroup(4, Configuration(parts)),) * 2)
    return replace(plan, kernels=(replace(kernel, groups=groups),))


def test_groups_of_channels_of_a_plan_are_shown_and_verified(
    plan_path: Path, tmp_path: Path, capsys: Capture
) -> None:
    plan, other = read_plan(plan_path), tmp_path / "other.plan"
    write_plan(with_groups(plan, *[MicroConfiguration(2, "IMPLICIT_GEMM", 0.25, 2**16)] * 2), other)
    assert main(["plan", "show", str(other)]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if "in groups of channels" in line)
    assert "2×4 channels (2×2 IMPLICIT_GEMM)" in line
    assert "1.00" in line  # milliseconds of both groups
    [shown] = json_of(capsys, ["plan", "show", "--json", str(other)])["kernels"]
    part = {"times": 2, "micro_batch": 2, "algorithm": "IMPLICIT_GEMM", "time_ms": 0.25, "workspace": 65536}
    group = {"times": 2, "channels": 4, "parts": [part], "time_ms": 0.5, "workspace": 65536}
    assert shown["groups"] == {"parts": [group], "of_inputs": False, "time_ms": 1.0, "workspace": 65536}
    assert main(["plan", "verify", "--no-run", str(other)]) == 0


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        (
            MicroConfiguration(4, "GUESSING", 1.0, 2**20),
            "groups of 4 channels: the library has no algorithm GUESSING any more",
        ),
        (MicroConfiguration(4, "GEMM", 1.0, 10), "groups of 4 channels: GEMM at 4 needs"),
    ],
)
def test_groups_that_cannot_run_as_planned_do_not_hold(
    plan_path: Path, part: MicroConfiguration, complaint: str, capsys: Capture
) -> None:
    write_plan(with_groups(read_plan(plan_path), part), plan_path)
    assert complaint in " ".join(output_of(capsys, ["plan", "verify", "--no-run", str(plan_path)], 1).split())

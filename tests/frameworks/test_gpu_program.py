"""The program that trains on a GPU runs end to end without one, also if a setting fails or takes too long."""

import json
from collections.abc import Sequence
from pathlib import Path

import needs_torch  # noqa: F401 (first: what torch_process imports needs PyTorch)
import pytest
import torch_process
from needs_torch import torch
from programs import HANGS
from torch_comparison import compare
from torch_process import Ended, Worker
from torch_program import Program
from torch_settings import ALL, GROUPS, WORKSPACE, Group, Setting

SMALL, VOLUME = Setting("small", "f64"), Setting("unet3d", "f64")
REFERENCE = Group("reference", 0.5, (SMALL, VOLUME), kinds=("plain",))
COMPARED = Group(
    "heuristics",
    0.5,
    (
        Setting("unet3d", "bf16"),
        Setting("unet3d", "f32 of yesterday"),
        Setting("small", "bf16", mode="compile"),
        Setting("unet3d", "f16", channels_last=True),
    ),
)


def test_every_setting_has_a_name_of_its_own_and_a_reference() -> None:
    assert len(ALL) == sum(len(group.settings) for group in GROUPS)
    assert all(setting.reference.name in ALL for setting in ALL.values())
    assert sum(group.share for group in GROUPS) == pytest.approx(1)


def test_it_trains_alone_and_under_mucudnn_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(torch_process, "STALL", HANGS)
    output = tmp_path / "out.json"
    program = Program((REFERENCE, COMPARED), Worker("cpu", tmp_path), 4 * HANGS, output)
    results = {result["setting"]: result for result in program.run()}
    report = json.loads(output.read_text())
    assert report["settings"] == list(results.values())
    assert report["machine"]["torch"] == torch.__version__
    assert [(p["kind"], p["exit_code"]) for p in report["processes"]] == [
        ("plain", 0), ("plain", 0), ("mucudnn", 0)
    ]  # fmt: skip
    unknown = results.pop(COMPARED.settings[1].name)
    assert unknown["status"] == "failed"
    assert "KeyError" in unknown["mucudnn"]["error"]
    assert len(results) == 3
    for result in results.values():
        assert result["status"] == "same", result
        assert 0 < result["gradient_error"] <= result["gradient_bound"]
        assert result["gradient_distance"] == 0  # on the CPU mucudnn changes nothing
        assert result["plain"]["losses"] == result["mucudnn"]["losses"]


class BreaksOff(Worker):
    """A worker that ends with given exit codes, without a process."""

    def __init__(self, *codes: int | None) -> None:
        self.codes, self.received = list(codes), list[Sequence[str]]()

    def run(self, group: Group, kind: str, names: Sequence[str], seconds: float) -> Ended:
        self.received.append(names)
        code = self.codes.pop(0)
        if code == 1:
            return Ended(1, "no such module", {}, {}, None)
        return Ended(code, "a line", {}, {names[0]: {"losses": [1.0]}}, names[-1 if code is None else 1])


def test_after_a_crash_the_settings_behind_it_still_run(tmp_path: Path) -> None:
    names = [setting.name for setting in COMPARED.settings]
    worker = BreaksOff(0, -11, 0, 0)
    results = Program((REFERENCE, COMPARED), worker, 600, tmp_path / "out").run()
    assert worker.received[1:3] == [names, names[2:]]
    assert results[1]["plain"] == {"error": "the process ended with -11", "stderr": "a line"}
    assert results[1]["status"] == "failed"


def test_settings_beyond_the_time_limit_are_not_run(tmp_path: Path) -> None:
    worker = BreaksOff(0, None, None)
    results = Program((REFERENCE, COMPARED), worker, 600, tmp_path / "out").run()
    assert [result["status"] for result in results[1:]] == ["not run"] * 3
    report = json.loads((tmp_path / "out").read_text())
    assert report["processes"][1]["exit_code"] == "the time was over"
    results = Program((REFERENCE, COMPARED), BreaksOff(), 0, tmp_path / "out").run()
    assert [result["status"] for result in results] == ["not run"] * 4


def test_a_process_that_cannot_even_begin_is_not_started_again(tmp_path: Path) -> None:
    worker = BreaksOff(0, 1, 1)
    results = Program((REFERENCE, COMPARED), worker, 600, tmp_path / "out").run()
    assert {result["status"] for result in results} == {"failed"}
    assert len(worker.received) == 3


@pytest.mark.parametrize(("factor", "peak", "same", "fits"), [(2, 0, True, True), (3, 1, False, False)])
def test_gradients_are_held_to_the_contract_and_peaks_to_the_limit(
    factor: float, peak: int, same: bool, fits: bool, tmp_path: Path
) -> None:
    setting = Setting("small", "fma")
    exact, off = torch.ones(100, dtype=torch.float64), torch.zeros(100)
    off[0] = 0.01
    for kind, gradient in (("plain", exact + off), ("mucudnn", exact + factor * off)):
        (tmp_path / kind).mkdir()
        torch.save(gradient, tmp_path / kind / f"{setting.name}.pt")
    torch.save(exact, tmp_path / "plain" / f"{setting.reference.name}.pt")
    plain = {"losses": [2.0, 1.0], "peak": 100, "later_peak": 100, "step_ms": 3.0}
    under = {**plain, "losses": [2.0, 1.5], "peak": 100 + WORKSPACE + peak, "step_ms": 1.5}
    folders = {kind: tmp_path / kind for kind in ("plain", "mucudnn")}
    comparison = compare(setting, plain, under, folders, WORKSPACE)
    assert (comparison["same"], comparison["within_memory"]) == (same, fits)
    assert comparison["gradient_error"] == pytest.approx(0.001 * factor)
    assert (comparison["loss_distance"], comparison["speedup"]) == (0.5, 2.0)

"""The program that trains on a GPU runs end to end without one, also if a setting fails or takes too long."""

import json
from pathlib import Path

import needs_torch  # noqa: F401 (first: what torch_process imports needs PyTorch)
import pytest
import torch_process
from needs_torch import torch
from programs import HANGS
from torch_comparison import compare
from torch_process import Worker
from torch_program import Program
from torch_settings import WORKSPACE, Group, Setting

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

"""The examples run, and the results that they compare agree."""

import json
import subprocess
import sys
from pathlib import Path

import needs_torch  # noqa: F401  (most examples need it)
import pytest
from programs import HANGS

from mucudnn.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANGS)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_training_under_a_limit_has_the_same_losses() -> None:
    assert "largest difference: " in run("train_under_limit.py")


def test_a_volume_goes_through_a_3d_unet_within_a_limit() -> None:
    assert "largest difference from PyTorch: " in run("unet3d.py")


def test_a_pipeline_trains_like_the_undivided_model_and_its_traces_show_the_causes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run(
        [*command, str(EXAMPLES / "pipeline.py"), "layers", str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=HANGS,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    difference = float(result.stdout.rpartition("undivided model: ")[2])
    assert difference < 1e-5
    assert (
        main(["parallel", "causes", *(str(tmp_path / f"rank{rank}.json") for rank in (0, 1)), "--json"]) == 0
    )
    for rank in json.loads(capsys.readouterr().out)["ranks"]:
        assert rank["steps"] == 4
        assert rank["ms"]["compute"] > 0
        # Without a pipeline one rank works at a time.
        assert rank["ms"]["wait"] > 0
        assert sum(rank["ms"].values()) == pytest.approx(rank["total_ms"])


def test_the_cupy_example_runs_or_says_why_not() -> None:
    assert run("cupy_convolution.py").startswith(("skipped: ", "cupy.ndarray of (64, 64, 56, 56)"))

"""The examples run, and the results that they compare agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import needs_torch  # noqa: F401  (most examples need it)

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name)]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_training_under_a_limit_has_the_same_losses() -> None:
    assert "largest difference: " in run("train_under_limit.py")


def test_a_volume_goes_through_a_3d_unet_within_a_limit() -> None:
    assert "largest difference from PyTorch: " in run("unet3d.py")


def test_the_cupy_example_runs_or_says_why_not() -> None:
    assert run("cupy_convolution.py").startswith(("skipped: ", "cupy.ndarray of (64, 64, 56, 56)"))

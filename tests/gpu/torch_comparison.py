"""The comparison of training under mucudnn with training without it: results and peaks of memory."""

import math
from pathlib import Path
from typing import Any

import torch
from torch_settings import EPSILON, Setting


def compare(
    setting: Setting, plain: dict[str, Any], under: dict[str, Any], folders: dict[str, Path], limit: int
) -> dict[str, Any]:
    """Compare losses, the gradient of the first step, peaks and times. Decide `same` and `within_memory`.

    The bound for gradients is that of a convolution, over all parameters together. With y the gradient under
    mucudnn, u that of PyTorch alone and y64 that in fp64, ‖y − y64‖ ≤ 2‖u − y64‖ + 2ε‖y64‖.
    """
    y, u = (_gradient(folders[kind], setting) for kind in ("mucudnn", "plain"))
    y64 = _gradient(folders["plain"], setting.reference)
    error, own_error = float((y - y64).norm()), float((u - y64).norm())
    bound = 2 * own_error + 2 * EPSILON[setting.arithmetic] * float(y64.norm())
    losses = _furthest(under["losses"], plain["losses"])
    peak = under["peak"] - plain["peak"]
    return {
        "same": error <= bound and math.isfinite(sum(under["losses"])),
        "within_memory": peak <= limit,
        "gradient_error": error / float(y64.norm()),
        "own_gradient_error": own_error / float(y64.norm()),
        "gradient_bound": bound / float(y64.norm()),
        "gradient_distance": float((y - u).norm() / u.norm()),
        "loss_distance": losses,
        "peak_difference": peak,
        "later_peak_difference": under["later_peak"] - plain["later_peak"],
        "speedup": plain["step_ms"] / under["step_ms"],
    }


def _gradient(folder: Path, setting: Setting) -> torch.Tensor:
    return torch.load(folder / f"{setting.name}.pt", weights_only=True).double()


def _furthest(losses: list[float], plain: list[float]) -> float:
    """Return the largest relative difference of the losses of a step."""
    return max(abs(a - b) / abs(b) for a, b in zip(losses, plain, strict=True))

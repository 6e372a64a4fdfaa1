"""Cases of ranks without rows, eager and compiled."""

from __future__ import annotations

import copy
import os
from itertools import product
from typing import Any

import torch
import torch._inductor.config as inductor
from spatial_layers import Call, divide, largest, mean_of_gradients
from spatial_models import compare
from torch import nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)


class Squeezed(nn.Module):
    """A scale for each channel, from the mean of the channel."""

    def forward(self, x: Any) -> Any:
        return x * F.adaptive_avg_pool2d(x, 1).sigmoid()


def _models() -> dict[str, nn.Module]:
    """Return networks for an axis of 7 rows on 3 ranks, of which the last has none after the first layer."""
    return {
        "short": nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(1, 4), nn.MaxPool2d(3, 1, 1)),
        "convolutions": nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, 1, 1), nn.BatchNorm2d(4),
            nn.MaxPool2d(3, 1, 1), Squeezed(), nn.ConvTranspose2d(4, 4, 3, 2, 1, 1),
        ),
        "resampling": nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), Call(F.pad, pad=(0, 0, 0, 0, 1, 0)), nn.AvgPool2d(3, 1, 1),
            Call(F.interpolate, size=(4, 4), mode="bilinear"), Call(F.interpolate, scale_factor=1.0),
            nn.AdaptiveMaxPool2d((4, 3)), nn.InstanceNorm2d(5), nn.Flatten(), nn.Linear(60, 2),
        ),
        "order": nn.Sequential(nn.Conv2d(1, 2, 3, 2, 1), nn.MaxPool2d(3, 1, 1), Squeezed()),
        "shuffled": nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.PixelShuffle(2), nn.Conv2d(1, 1, 3, 1, 1)),
    }  # fmt: skip


COMPILED = {
    ("short", True),
    ("short", False),
    ("order", True),
}  # the others only with TEST_CASES: it takes long


def without_rows() -> dict[str, float]:
    """Return the largest error of results and gradients of each network, in each mode, eager and compiled.

    Inductor sees no order in the data of the network "order": on the rank without rows, its graph could add
    up the means before it fetches any rows.
    """
    torch.manual_seed(0)
    x, errors = torch.randn(2, 1, 7, 8, dtype=torch.float64), {}
    for (name, model), training, compiled in product(_models().items(), (True, False), (False, True)):
        if compiled and (name, training) not in COMPILED and "TEST_CASES" not in os.environ:
            continue
        mine, expected = copy.deepcopy(model).double(), copy.deepcopy(model).double()
        mine.train(training), expected.train(training)
        backend = "inductor" if name == "order" else "aot_eager"
        run = torch.compile(mine, backend=backend, fullgraph=True) if compiled else mine
        with torch.set_grad_enabled(training), inductor.patch(fx_graph_cache=False):
            y, due = run(divide(x)), expected(x)
        error = largest(y if isinstance(y, torch.Tensor) else y.gather(), due)
        if training:
            y.square().mean().backward()
            due.square().mean().backward()
            mean_of_gradients(mine)
            error = max(error, compare(mine, expected))
        errors[f"{name}, training {training}, compiled {compiled}"] = error
    return errors

"""torchvision, whose wheel for CUDA cannot be imported beside a PyTorch for the CPU without help."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch

_declared: list[torch.library.Library] = []  # kept, because a freed library removes its operators


def import_torchvision() -> Any:
    """Import torchvision and return it; raise ImportError where it is not installed.

    Its own operators cannot load beside another PyTorch, but it describes two of them at import, so these are
    declared here without a body. No network needs them.
    """
    try:
        return import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declared.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            _declared[-1].define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        return import_module("torchvision")

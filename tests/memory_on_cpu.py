"""Runs of memory plans on the CPU, whose copies to host memory are real, but are made at once."""

from typing import Any

import pytest
from needs_torch import torch

# Imported later, `plan_memory` would keep the functions that replace others here.
from mucudnn.torch.training import apply, plan_memory, runtime  # noqa: F401


class LanesAtOnce:
    """The lanes of a device without streams, on which each copy ends before the program goes on."""

    def __init__(self, device: torch.device, piece: int) -> None:
        self.device, self.recording, self.copies = device, None, 0

    def copy(self, to: torch.Tensor, source: torch.Tensor, direction: str, order: int) -> None:
        to.copy_(source)
        self.copies += 1

    def wait(self, waiting: Any, moment: Any) -> None:
        """Do nothing: no copy is under way."""

    def wait_for(self, moment: Any) -> None:
        """Do nothing: no copy is under way."""


def run_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans for an H200 run on the CPU."""
    for module in (apply, runtime):
        monkeypatch.setattr(module, "device_of", lambda model: torch.device("cpu"))
    monkeypatch.setattr(runtime, "pin", lambda size: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(runtime, "Lanes", LanesAtOnce)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "h200")

"""A small model, its mini-batch, its step without a plan, and the model with all its tensors offloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # PyTorch may be missing, and then only the tests are skipped
    from memory_steps import Observed
    from torch import Tensor, nn


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out algorithms whose bits differ between runs: the tests compare bits."""
    import torch

    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


@pytest.fixture
def model() -> nn.Module:
    """Return the model, on the device."""
    import torch
    from memory_networks import Net

    torch.manual_seed(1)
    return Net().cuda()


@pytest.fixture
def x() -> Tensor:
    """Return a mini-batch for the model."""
    import torch

    torch.manual_seed(2)
    return torch.randn(16, 3, 32, 32, device="cuda")


@pytest.fixture
def stock(model: nn.Module, x: Tensor) -> Observed:
    """Return the outcome of a step without a plan."""
    from memory_steps import train

    return train(model, x)


@pytest.fixture
def planned(model: nn.Module, x: Tensor, stock: Observed) -> nn.Module:
    """Return the model with all tensors offloaded."""
    from memory_steps import quick_plan

    import mucudnn.torch as mt

    return mt.apply(model, quick_plan(model, x))

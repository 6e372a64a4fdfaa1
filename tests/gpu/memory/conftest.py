"""A small model, its mini-batch, its step without a plan, and the model with all its tensors offloaded."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install torch")

from memory_networks import Net
from memory_steps import Observed, quick_plan, train
from needs_torch import mt, torch
from torch import Tensor, nn


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(1)
    return Net().cuda()


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(2)
    return torch.randn(16, 3, 32, 32, device="cuda")


@pytest.fixture
def stock(model: nn.Module, x: Tensor) -> Observed:
    return train(model, x)


@pytest.fixture
def planned(model: nn.Module, x: Tensor, stock: Observed) -> nn.Module:
    """Return the model with all tensors offloaded."""
    return mt.apply(model, quick_plan(model, x))

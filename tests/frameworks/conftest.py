from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch


@pytest.fixture(scope="module", autouse=True)
def _one_cache(one_cache: None) -> None:
    """Give each file of this folder a cache of its own."""


@pytest.fixture
def network() -> torch.nn.Module:
    import torch
    from small_network import Network

    torch.manual_seed(1)
    return Network().eval()

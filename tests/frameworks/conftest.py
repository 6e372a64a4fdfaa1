from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from mucudnn import dispatch

if TYPE_CHECKING:
    import torch


@pytest.fixture(scope="package", autouse=True)
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is measured for one test serves the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUCUDNN_CACHE", str(tmp_path_factory.mktemp("cache") / "cache.sqlite"))
        patch.delenv("MUCUDNN_WORKSPACE_LIMIT", raising=False)
        patch.setattr(dispatch, "_prepared", {})
        yield


@pytest.fixture
def network() -> torch.nn.Module:
    import torch
    from small_network import Network

    torch.manual_seed(1)
    return Network().eval()

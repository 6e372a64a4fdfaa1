"""The processes that the tests of a session share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="torch.distributed needs PyTorch")

from processes import Processes


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    """Start processes that run functions together; see `Processes.run`."""
    started = Processes()
    yield started
    started.stop()

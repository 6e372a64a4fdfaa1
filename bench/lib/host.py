"""The host engine, as the programs of the bench use it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.lib.openblas import OpenBlas
from bench.lib.record import Machine, describe_machine
from mucudnn._native import Engine, host_library
from mucudnn.cli.terminal import Terminal
from mucudnn.costs.cache import Cache
from mucudnn.measuring.bench import Bench


def describe_host(**more: Any) -> Machine:
    """Return the description of this machine with its host engine on one thread, and with `more`."""
    engine = Engine(host_library(), threads=1)
    return describe_machine(
        device=engine.device, library=engine.library, openblas_kernel=OpenBlas().kernel, **more
    )


@contextmanager
def host_bench(*, thorough: bool = True) -> Iterator[Bench]:
    """Yield a bench of the host engine on one thread, with an empty cache that is deleted afterwards."""
    with TemporaryDirectory() as folder, Cache.open(Path(folder) / "cache.sqlite") as cache:
        yield Bench(Engine(host_library(), threads=1), cache, Terminal(), thorough=thorough)

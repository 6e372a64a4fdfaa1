"""The host engine, as the programs of the bench use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from bench.lib.record import Machine, describe_machine
from mucudnn._native import Engine, host_library
from mucudnn.cli.terminal import Terminal
from mucudnn.costs.cache import Cache
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.compare import run_interleaved
from mucudnn.measuring.runners import Exhaustive, Runner
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration

Way = TypeVar("Way", bound=Configuration | ChannelGroups)


def describe_host() -> Machine:
    """Return the description of this machine with its host engine on one thread and PyTorch."""
    engine = Engine(host_library(), threads=1)
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = ""
    return describe_machine(device=engine.device, library=engine.library, torch=torch)


@contextmanager
def host_bench(runner: Runner | None = None, threads: int = 1) -> Iterator[Bench]:
    """Yield a bench of the host engine, with an empty cache that is deleted afterwards."""
    with TemporaryDirectory() as folder, Cache.open(Path(folder) / "cache.sqlite") as cache:
        yield Bench(Engine(host_library(), threads=threads), cache, Terminal(), runner or Exhaustive())


def run_whole(engine: Engine, kernel: Kernel, ways: Iterable[Way], rounds: int) -> dict[Way, list[float]]:
    """Return the ms of each way to run a kernel in each round, interleaved; a first round does not count."""
    different = list(dict.fromkeys(ways))
    return dict(zip(different, run_interleaved(engine, kernel, different, rounds).times_ms, strict=True))

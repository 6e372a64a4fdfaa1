"""Training steps of whole networks in unmodified PyTorch: stock, with cudnn.benchmark, under the drop-in."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.lib.record import Record
from bench.suites.gpu.programs import LAUNCHES, call
from bench.suites.gpu.run import Case, Run
from mucudnn.costs.journal import journal_of
from mucudnn.errors import MucudnnError

STOCK, DROP_IN = LAUNCHES
FIRST, SECOND = f"{DROP_IN}, first process", f"{DROP_IN}, second process"
PEAK = "peak memory of PyTorch's allocator"
WAYS = {  # way -> key of LAUNCHES, and whether to set torch.backends.cudnn.benchmark
    "stock": (STOCK, False),
    "cudnn.benchmark": (STOCK, True),
    FIRST: (DROP_IN, False),
    SECOND: (DROP_IN, False),
}


def cases(run: Run) -> Iterator[Case]:
    """Yield the training steps, network by network, each in all ways."""
    for network in run.setting.networks:
        for way in WAYS:
            yield Case("training", f"{network}, {way}", partial(_steps, run, network, way))


def _steps(run: Run, network: str, way: str) -> Iterator[Record]:
    case, (launch, tuned) = f"{network}, {way}", WAYS[way]
    if way == SECOND and not run.has("training", f"{network}, {FIRST}"):
        raise MucudnnError("the first process was not done")
    journal = journal_of(run.store.programs_cache(network))
    before = _size(journal)
    arguments = (network, "--steps", str(run.setting.steps), *(("--benchmark",) if tuned else ()))
    answer = call(run, launch, "bench.suites.gpu.torch_step", *arguments, share=network)
    details: dict[str, Any] = {name: answer[name] for name in ("losses", "torch", "cudnn", "tf32", "drop_in")}
    if launch == DROP_IN:
        # A first process finds a journal only if a former one was stopped; then it has less to measure.
        details |= {"journal_bytes_before": before, "journal_bytes_added": _size(journal) - before}
    yield Record("training", case, "step", answer["step_ms"], "ms", details)
    yield Record("training", case, "first step", answer["first_ms"], "ms")
    yield Record("training", case, PEAK, answer["peak_mib"], "MiB")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0

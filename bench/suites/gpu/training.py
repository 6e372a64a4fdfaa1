"""Training steps of whole networks in PyTorch: unmodified under the drop-in, and in less memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.lib.record import Record
from bench.suites.gpu.launching import DROP_IN, STOCK, call
from bench.suites.gpu.run import Case, Run
from mucudnn.costs.journal import journal_of
from mucudnn.errors import MucudnnError

PEAK = "peak memory of PyTorch's allocator"
BENCHMARK = "cudnn.benchmark"
FIRST, SECOND = f"{DROP_IN}, first process", f"{DROP_IN}, second process"
WAYS = {  # way -> key of LAUNCHES, and whether to set torch.backends.cudnn.benchmark
    STOCK: (STOCK, False),
    BENCHMARK: (STOCK, True),
    FIRST: (DROP_IN, False),
    SECOND: (DROP_IN, False),
}
PLANS = {f"plan at {part} %": part / 100 for part in (100, 70, 50, 35)}  # parts of stock's peak
MEMORY_WAYS = (STOCK, *PLANS, "save_on_cpu", "checkpoint")
# The metrics of a step in less memory, by the names that the program gives them, with their units.
MEMORY_METRICS = {
    "step_ms": ("step", "ms"),
    "peak_mib": (PEAK, "MiB"),
    "predicted_peak_mib": ("predicted peak", "MiB"),
    "predicted_ms": ("predicted step", "ms"),
    "beyond_ms": ("step beyond the same kernels without a plan", "ms"),
    "predicted_exposed_ms": ("predicted wait for copies", "ms"),
}


def training(run: Run) -> Iterator[Case]:
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
    details: dict[str, Any] = {name: answer[name] for name in ("torch", "cudnn", "tf32", "drop_in")}
    if launch == DROP_IN:
        # A first process has a journal only if a former run was stopped; then it has less to measure.
        details |= {"journal_bytes_before": before, "journal_bytes_added": _size(journal) - before}
    yield Record("training", case, "step", answer["step_ms"], "ms", details)
    yield Record("training", case, "first step", answer["first_ms"], "ms")
    yield Record("training", case, PEAK, answer["peak_mib"], "MiB")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def memory(run: Run) -> Iterator[Case]:
    """Yield training steps under memory plans, next to PyTorch's other ways to train in less memory."""
    for network in run.setting.planned:
        for way in MEMORY_WAYS:
            yield Case("memory", f"{network}, {way}", partial(_memory_step, run, network, way))


def _memory_step(run: Run, network: str, way: str) -> Iterator[Record]:
    case, arguments = f"{network}, {way}", (network, way, "--steps", str(run.setting.steps))
    answer = call(run, STOCK, "bench.suites.gpu.torch_memory", *arguments, share=f"memory of {network}")
    described = ("torch", "cudnn", "tf32", "memory_mib", "floor_mib", "choices", "why")
    details = {name: answer[name] for name in described if name in answer}
    if "why" in answer:
        yield Record("memory", case, "step", None, "ms", details)
        return
    for name, (metric, unit) in MEMORY_METRICS.items():
        if answer.get(name) is not None:
            yield Record("memory", case, metric, answer[name], unit, details)

"""Training steps under memory plans, next to the other ways by which PyTorch trains in less memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.lib.record import Record
from bench.suites.gpu.programs import LAUNCHES, call
from bench.suites.gpu.run import Case, Run
from bench.suites.gpu.training import PEAK

STOCK = "stock"
PARTS_OF_STOCK = (100, 70, 50, 35)  # percent of stock's peak
PLANS = tuple(f"plan at {part} %" for part in PARTS_OF_STOCK)
OTHERS = ("save_on_cpu", "checkpoint", "OffloadActivations of TRL")
PREDICTED_PEAK, PREDICTED_STEP = "predicted peak", "predicted step"
EXPOSED, PREDICTED_EXPOSED = "step beyond the same kernels without a plan", "predicted wait for copies"
# The metrics of a step, by the names that the program gives them, with their units.
METRICS = {
    "step_ms": ("step", "ms"),
    "peak_mib": (PEAK, "MiB"),
    "predicted_peak_mib": (PREDICTED_PEAK, "MiB"),
    "predicted_ms": (PREDICTED_STEP, "ms"),
    "beyond_ms": (EXPOSED, "ms"),
    "predicted_exposed_ms": (PREDICTED_EXPOSED, "ms"),
}


def cases(run: Run) -> Iterator[Case]:
    """Yield the training steps, network by network, each in all ways."""
    for network in run.setting.planned:
        for way in (STOCK, *PLANS, *OTHERS):
            yield Case("memory", f"{network}, {way}", partial(_step, run, network, way))


def _step(run: Run, network: str, way: str) -> Iterator[Record]:
    launch, case = next(iter(LAUNCHES)), f"{network}, {way}"
    arguments = (network, way, "--steps", str(run.setting.steps))
    answer = call(run, launch, "bench.suites.gpu.torch_memory", *arguments, share=f"memory of {network}")
    details: dict[str, Any] = {name: answer[name] for name in ("torch", "cudnn", "tf32")}
    details |= {name: answer[name] for name in ("memory_mib", "floor_mib", "choices") if name in answer}
    if "why" in answer:
        yield Record("memory", case, "step", None, "ms", {**details, "why": answer["why"]})
        return
    for name, (metric, unit) in METRICS.items():
        if answer.get(name) is not None:
            yield Record("memory", case, metric, answer[name], unit, details)

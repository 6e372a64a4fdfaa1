"""The errors of each algorithm and data type against fp64, and of PyTorch's own operator on the same values.

The kernels are a 3×3 and a 5×5 of 64 channels at 28² with normally distributed values, N=4. The error of a
result is its distance from fp64 on the same rounded values: the norm of all distances relative to the norm of
the results, and the largest distance relative to the largest result.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import torch

from bench.lib.record import Record
from mucudnn import convolution_forward
from mucudnn._native import Engine, Problem, host_library
from mucudnn.costs.records import SUCCESS
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
SIDES = (3, 5)
STOCK = "PyTorch's own"
HEAD = ("algorithm", "filter", *(f"{name}: {form}" for name in TYPES for form in ("norm", "worst")))


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield two errors for each filter, data type and algorithm, and for PyTorch's own operator."""
    engine = Engine(host_library(), threads=1)
    for side in SIDES:
        generator = torch.Generator().manual_seed(side)
        x, w = (
            torch.randn(4, 64, 28, 28, generator=generator),
            torch.randn(64, 64, side, side, generator=generator),
        )
        for name, dtype in TYPES.items():
            own, filter_ = x.to(dtype), w.to(dtype)
            exact = torch.conv2d(own.double(), filter_.double(), padding=side // 2)
            problem = Problem(
                mini_batch=4, in_channels=64, out_channels=64, input=(28, 28), kernel=(side, side),
                padding=(side // 2, side // 2), data_type=name,
            )  # fmt: skip
            results = {STOCK: torch.conv2d(own, filter_, padding=side // 2)}
            for candidate in engine.enumerate(Kernel(problem, "forward")):
                if candidate.status == SUCCESS:
                    plan = _plan(problem, candidate.algorithm, candidate.workspace)
                    results[candidate.algorithm] = convolution_forward(
                        own, filter_, padding=side // 2, plan=plan
                    )
            for algorithm, result in results.items():
                distance, case = result.double() - exact, f"{algorithm}, {side}×{side}, {name}"
                norm = (distance.norm() / exact.norm()).item()
                worst = (distance.abs().max() / exact.abs().max()).item()
                yield Record("errors", case, "norm", norm, "ratio")
                yield Record("errors", case, "worst", worst, "ratio")


def _plan(problem: Problem, algorithm: str, workspace: int) -> Plan:
    choice = Configuration((MicroConfiguration(problem.mini_batch, algorithm, 1.0, workspace),))
    return Plan({}, (PlanKernel(Kernel(problem, "forward"), 1, choice, (choice,)),))


def summarize(records: Iterable[Record]) -> list[tuple[str, ...]]:
    """Return a row for each algorithm and filter; an empty cell where the algorithm does not run the type."""
    values = {(*record.case.split(", "), record.metric): record.value for record in records}
    rows = dict.fromkeys((algorithm, filter_) for algorithm, filter_, _, _ in values)
    return [
        (*row, *(_short(values.get((*row, name, form))) for name in TYPES for form in ("norm", "worst")))
        for row in sorted(rows, key=lambda row: (row[1], row[0]))
    ]


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.0e}"

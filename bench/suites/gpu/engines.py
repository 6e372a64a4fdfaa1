"""cuDNN's engines for each kernel, with notes, times and workspaces, from the whole mini-batch down to 1.

The measurements themselves go to `measurements.jsonl.gz` in the results' folder. A record sums up those of a
kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench.lib.record import Record
from bench.suites.gpu.run import Case, Run
from mucudnn.costs.records import SUCCESS, Measurement
from mucudnn.measuring.benchmark import benchmark
from mucudnn.problems.kernels import PASSES, Kernel

TYPES = ("TF32 NCHW", "bf16 NCHW", "fp32 NCHW")
LEGACY = ("FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED")
TENSOR = "tensor_op"


def cases(run: Run) -> Iterator[Case]:
    """Yield the kernels, forward first; each in all data types before the next kernel begins."""
    for pass_ in PASSES:
        found = {column: _kernels(run, column, pass_) for column in TYPES}
        for same in zip(*found.values(), strict=True):
            for column, kernel in zip(TYPES, same, strict=True):
                case = f"{kernel}, {column}"
                yield Case("engines", case, partial(_engines, run, kernel, case))


def _kernels(run: Run, column: str, pass_: str) -> list[Kernel]:
    return [
        kernel
        for network in ("alexnet", "deepbench")
        for kernel in run.setting.kernels(network, column, (pass_,))
    ]


def _engines(run: Run, kernel: Kernel, case: str) -> Iterator[Record]:
    benchmark(run.bench, [kernel], "power_of_two", comparing=False)
    rows = run.bench.costs([kernel]).measurements[kernel]
    ran = [row for row in rows if row.median_ms is not None]
    sizes = sorted({row.micro_batch for row in ran}, reverse=True)
    whole = {row.algorithm: row.status for row in rows if row.micro_batch == kernel.mini_batch}
    details = {
        "problem": str(kernel.problem),
        "sizes": {size: summarize_size([row for row in ran if row.micro_batch == size]) for size in sizes},
        "legacy": {name: whole.get(name, "unknown") == SUCCESS for name in LEGACY},
    }
    yield Record("engines", case, "algorithms that run", len({row.algorithm for row in ran}), "", details)


def summarize_size(rows: Sequence[Measurement]) -> dict[str, Any]:
    """Sum up the measurements at one size: their number, the fastest, and the needs of tensor cores.

    Times are in ms, workspaces in bytes.
    """
    fastest = min(rows, key=_time)
    tensor = [row for row in rows if TENSOR in row.notes.split()]
    without = [row for row in rows if row not in tensor]
    return {
        "run": len(rows),
        "fastest": fastest.algorithm,
        "ms": fastest.median_ms,
        "workspace": fastest.workspace,
        "with_tensor_cores": len(tensor),
        "least_workspace_with_tensor_cores": min((row.workspace for row in tensor), default=None),
        "ms_without_tensor_cores": min(map(_time, without), default=None),
    }


def _time(row: Measurement) -> float:
    assert row.median_ms is not None
    return row.median_ms

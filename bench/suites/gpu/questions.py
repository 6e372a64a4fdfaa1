"""The questions of the GPU bench, each with its aim and a function that finds the answer in the records."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from bench.lib.answers import NOT_MEASURED
from bench.lib.record import Record
from bench.suites.gpu import memory
from bench.suites.gpu.checks import SUITE
from bench.suites.gpu.columns import PAPER
from bench.suites.gpu.programs import LAUNCHES
from bench.suites.gpu.run import FAILED
from bench.suites.gpu.setting import COLUMNS, GPU, MIB
from bench.suites.gpu.training import PEAK, SECOND, WAYS
from mucudnn.problems.kernels import PASSES

STOCK, DROP_IN = LAUNCHES
Found = dict[tuple[str, str, str], Record]  # (bench, case, metric) -> its last record


def latest(records: Iterable[Record]) -> Found:
    """Return the last record of each case and metric; a figure removes the earlier failure of its case."""
    found: Found = {}
    for record in records:
        if record.metric != FAILED:
            found.pop((record.bench, record.case, FAILED), None)
        found[record.bench, record.case, record.metric] = record
    return found


def questions(found: Found) -> list[tuple[str, str, str]]:
    """Return (question, aim, figure) for every question, in the order in which they are measured."""
    return [(question, aim, answer(found) or NOT_MEASURED) for question, aim, answer in QUESTIONS]


def value_of(found: Found, bench: str, case: str, metric: str, unit: str) -> str:
    """Return a figure with its unit, "" if there is none."""
    record = found.get((bench, case, metric))
    return "" if record is None or record.value is None else f"{short(record.value)} {unit}".strip()


def short(value: float) -> str:
    """Return a number with four significant digits, and with all digits before the point."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _cliff(batch: int, free: str) -> Callable[[Found], str]:
    def answer(found: Found) -> str:
        times = {
            launch: value_of(found, "cliff", f"N={batch}, {free}, {launch}", "time of a call", "ms")
            for launch in LAUNCHES
        }
        if not any(times.values()):
            return ""
        return f"stock {times[STOCK] or NOT_MEASURED}, under `run` {times[DROP_IN] or NOT_MEASURED}"

    return answer


def _engines(found: Found) -> str:
    rows = [record for record in found.values() if record.bench == "engines" and record.value]
    if not rows:
        return ""
    counts = statistics.median(record.value or 0 for record in rows)
    whole: list[dict[str, Any]] = [next(iter(record.details["sizes"].values()), {}) for record in rows]
    tensor = [at for at in whole if at.get("with_tensor_cores")]
    least = [at["least_workspace_with_tensor_cores"] / MIB for at in tensor]
    text = f"{counts:.0f} run (median of {len(rows)} kernels)"
    if least:
        text += (
            f"; whole, {len(tensor)} have some with tensor cores, from {statistics.median(least):.4g} MiB up"
        )
    return text


def _legacy(found: Found) -> str:
    rows = [
        r.details["legacy"]
        for r in found.values()
        if r.bench == "engines" and "legacy" in r.details and r.case.endswith("fp32 NCHW")
    ]
    if not rows:
        return ""
    return ", ".join(f"{name} {sum(row[name] for row in rows)} of {len(rows)}" for name in rows[0])


def ratios_of(found: Found, column: str, networks: tuple[str, ...], limit: int) -> list[Record]:
    """Return the speedup records of a column within a limit (in bytes), for the kernels of these networks."""
    return [
        record
        for (bench, case, metric), record in found.items()
        if bench == column and metric == f"speedup within {limit // MIB} MiB" and case.startswith(networks)
    ]


def _speedup(
    column: str, networks: tuple[str, ...], *limits: int, kernels: str = ""
) -> Callable[[Found], str]:
    """Make a function that shows the speedups of the networks' kernels within limits in MiB.

    `kernels` is a part of the descriptor that selects kernels.
    """

    def answer(found: Found) -> str:
        records = [r for mib in limits for r in ratios_of(found, column, networks, mib * MIB)]
        measured = [r for r in records if kernels in r.details["problem"]]
        ratios = [r.value for r in measured if r.value is not None]
        if not ratios:
            return ""
        above = sum(ratio > 1.05 for ratio in ratios)
        figures = [
            f"{statistics.geometric_mean(ratios):.2f}× (worst {min(ratios):.2f}, best {max(ratios):.2f})",
            f"above 1.05×: {above} of {len(ratios)}",
            ", ".join(_passes(measured)),
        ]
        if nothing := len(measured) - len(ratios):
            figures.append(f"besides {nothing} of which nothing undivided fits")
        return "; ".join(figures)

    return answer


def _passes(records: list[Record]) -> Iterator[str]:
    """Yield the number of records of each pass that has any, such as `5 forward`."""
    for pass_ in PASSES:
        if count := sum(record.case.endswith(f" {pass_}") for record in records):
            yield f"{count} {pass_}"


def _of_unlimited(found: Found) -> str:
    all_of = [record for column in TENSOR_CORES for record in ratios_of(found, column, _BOTH, 64 * MIB)]
    ratios = [ratio for record in all_of if (ratio := record.details["of_unlimited"])]
    if not ratios:
        return ""
    near = sum(ratio <= 1.05 for ratio in ratios)
    return f"{statistics.geometric_mean(ratios):.2f} of its time; {near} of {len(ratios)} within 5 %"


def _worst(found: Found) -> str:
    known = [r for r in found.values() if r.metric.startswith("speedup within") and r.value is not None]
    if not known:
        return ""
    worst = min(known, key=lambda record: record.value or 0.0)
    return f"{worst.value:.2f}×: {worst.bench}, {worst.case}, {worst.metric.removeprefix('speedup ')}"


def _step(network: str) -> Callable[[Found], str]:
    def answer(found: Found) -> str:
        steps = {
            way: found.get(("training", f"{network}, {way}", "step"))
            for way in ("stock", "cudnn.benchmark", SECOND)
        }
        tuned, ours = steps["cudnn.benchmark"], steps[SECOND]
        if ours is None or ours.value is None:
            return ""
        rate = f"{tuned.value / ours.value:.2f} of its speed" if tuned and tuned.value else ""
        added = f"{ours.details['journal_bytes_added']} bytes measured in the second process"
        peak, stock_peak = (found.get(("training", f"{network}, {way}", PEAK)) for way in (SECOND, "stock"))
        more = ""
        if peak and stock_peak and peak.value and stock_peak.value:
            more = f"{short(peak.value - stock_peak.value)} MiB more than stock's peak"
        firsts = [value_of(found, "training", f"{network}, {way}", "first step", "ms") for way in WAYS]
        named = zip(("stock", "benchmark", "first process", "second process"), firsts, strict=True)
        first = ", ".join(f"{name} {ms}" for name, ms in named if ms)
        return "; ".join(filter(None, (f"{short(ours.value)} ms", rate, more, added, f"first step: {first}")))

    return answer


def _planned_step(network: str, part: int) -> Callable[[Found], str]:
    """Return a function that answers with the time, the peak and the wait of a step under a memory plan."""

    def answer(found: Found) -> str:
        case, stock = f"{network}, plan at {part} %", f"{network}, {memory.STOCK}"
        step, before = (found.get(("memory", name, "step")) for name in (case, stock))
        if step is None:
            return ""
        if step.value is None:
            return str(step.details.get("why", ""))
        slower = f"{step.value / before.value:.2f} of stock's time" if before and before.value else ""
        peak = value_of(found, "memory", case, PEAK, "MiB")
        predicted = value_of(found, "memory", case, memory.PREDICTED_PEAK, "MiB")
        beyond = value_of(found, "memory", case, memory.EXPOSED, "ms")
        waits = value_of(found, "memory", case, memory.PREDICTED_EXPOSED, "ms")
        return "; ".join(
            filter(
                None,
                (
                    slower,
                    f"peak {peak}, predicted {predicted}",
                    f"{beyond} beyond the same kernels, predicted {waits}",
                ),
            )
        )

    return answer


def _cliffs(found: Found) -> str:
    swept = [r for r in found.values() if r.bench == "sweep" and r.metric == "cliffs"]
    at = sorted({size for record in swept for size in record.details["at"]})
    sizes = {size for record in swept for size in record.details["ms"]}
    return f"{', '.join(map(str, at)) or 'none'} of {len(sizes)} that are measured" if swept else ""


def _engine_cliffs(found: Found) -> str:
    record = next((r for r in found.values() if r.metric == "cliffs within 64 MiB"), None)
    return ", ".join(map(str, record.details["at"])) or "none" if record else ""


def _equality(found: Found) -> str:
    records = [r for r in found.values() if r.bench == "equality" and r.metric != FAILED]
    ratios = [r.value for r in records if r.value is not None]
    why = Counter(str(r.details.get("why", "no reason given")) for r in records if r.value is None)
    without = [f"{count} without: {reason}" for reason, count in why.items()]
    worst = [f"worst {max(ratios):.2f} of {len(ratios)}"] if ratios else []
    return "; ".join(worst + without)


def _sums(found: Found) -> str:
    record = next((r for r in found.values() if r.bench == "sums" and r.metric != FAILED), None)
    if record is None:
        return ""
    return (
        "; ".join(way for way, answer in record.details.items() if answer == "fp32") or "none of those tried"
    )


def _determinism(found: Found) -> str:
    rows = [r for r in found.values() if r.bench == "determinism" and r.value is not None]
    return f"{sum(r.value == 1 for r in rows)} of {len(rows)}" if rows else ""


def _suite(found: Found) -> str:
    files = [r for r in found.values() if r.bench == "suite" and r.metric == "tests passed"]
    if not files:
        return ""
    failed = [line for record in files for line in record.details["failed"]]
    passed = sum(record.value or 0 for record in files)
    return f"{passed:.0f} passed, {len(failed)} failed, in {len(files)} of {len(SUITE)} files"


_BOTH = ("alexnet", "resnet50")
TENSOR_CORES = ("fp16 NCHW", "TF32 NCHW", "bf16 NCHW")
_AIMS = dict.fromkeys(TENSOR_CORES, "at least 3×") | {"fp16 NHWC": "about 1×", "bf16 NHWC": "about 1×"}
QUESTIONS: tuple[tuple[str, str, Callable[[Found], str]], ...] = (
    *(
        (
            f"bf16 3×3 stride 2 of 513², N={batch} (pytorch#128936), {free}",
            "at most 25 ms" if batch == 64 else "",
            _cliff(batch, free),
        )
        for batch in (64, 63)
        for free in ("512 MiB of workspace", "any workspace")
    ),
    ("engines that cuDNN offers", "", _engines),
    ("kernels in which legacy FFT and Winograd run, strict fp32", "", _legacy),
    *(
        (f"geometric mean of the speedups by division, {column}, AlexNet and ResNet-50, N=256, 64 MiB",
         _AIMS.get(column, ""), _speedup(column, _BOTH, 64))
        for column in COLUMNS
    ),
    ("the same, AlexNet alone, fp32 NCHW, N=256, 64 MiB", "above 1.63×",
     _speedup("fp32 NCHW", ("alexnet",), 64)),
    *(
        (f"DeepBench {size}×{size}, {column}, N=256, 128 and 512 MiB", aim if column == PAPER[0] else "",
         _speedup(f"DeepBench {column}", ("deepbench",), 128, 512, kernels=f"_kh{size}kw{size}_"))
        for column in PAPER
        for size, aim in ((3, "the paper: up to 2.31×"), (5, "the paper: up to 3.85×"))
    ),
    ("time within 64 MiB relative to undivided without a limit, fp16, TF32 and bf16 NCHW", "within 5 %",
     _of_unlimited),
    ("worst speedup of all kernels, columns and limits", "at least 0.98×", _worst),
    *(
        (f"a training step of {network} within 512 MiB, against cudnn.benchmark",
         "at least 0.95; at most 512 MiB; 0 bytes", _step(network))
        for network in GPU.networks
    ),
    *(
        (f"a training step of {network} in {part} % of stock's peak memory", "", _planned_step(network, part))
        for network in GPU.planned
        for part in memory.PARTS_OF_STOCK
    ),
    ("mini-batch sizes from 1 to 256 at which stock PyTorch's time jumps", "", _cliffs),
    ("the same, the engine undivided within 64 MiB, sizes near powers of two", "", _engine_cliffs),
    ("error of divided results relative to the undivided error", "at most 2", _equality),
    ("calls of cuDNN that add 16-bit slices in fp32", "at least one", _sums),
    ("kernels with one result in three processes", "all", _determinism),
    ("the tests that need a GPU", "all pass", _suite),
)  # fmt: skip

"""The tables of the GPU's figures, which also make the page `summary.md` of a results folder."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from bench.lib.answers import NOT_MEASURED, short, table
from bench.lib.record import Record, read
from bench.suites.gpu.kernels import LIMITS, TYPES
from bench.suites.gpu.run import FAILED, Store
from bench.suites.gpu.setting import COLUMNS, GPU, HOST, MIB
from bench.suites.gpu.training import BENCHMARK, MEMORY_METRICS, MEMORY_WAYS, PEAK, WAYS
from mucudnn.problems.kernels import PASSES

Latest = dict[tuple[str, str, str], Record]  # (bench, case, metric) -> its last record
Rows = Iterable[tuple[str, ...]]
SIZES = (256, 64, 16, 1)  # the mini-batches of the engines' table
# The kernels of a row: the networks, and a part of the descriptor that selects among their kernels.
GROUPS = {
    "alexnet": (("alexnet",), ""),
    "resnet50": (("resnet50",), ""),
    "alexnet and resnet50": (("alexnet", "resnet50"), ""),
    "deepbench 3×3": (("deepbench",), "_kh3kw3_"),
    "deepbench 5×5": (("deepbench",), "_kh5kw5_"),
}


@dataclass(frozen=True)
class Table:
    """A table of figures, with the function that makes its rows."""

    title: str
    aim: str
    head: tuple[str, ...]
    rows: Callable[[Latest], Rows]


def latest(records: Iterable[Record]) -> Latest:
    """Return the last record of each case and metric; a figure removes the earlier failure of its case."""
    last: Latest = {}
    for record in records:
        if record.metric != FAILED:
            last.pop((record.bench, record.case, FAILED), None)
        last[record.bench, record.case, record.metric] = record
    return last


def write_summary(store: Store) -> None:
    """Write `summary.md` from the records of a results folder."""
    records = read(store.records)
    machine = records[-1][0] if records else {}
    text = summary(store.folder.name, machine, latest(record for _, record in records))
    store.summary.write_text(text, "utf-8")


def summary(name: str, machine: dict[str, Any], last: Latest) -> str:
    """Return the text of the page; `machine` describes the machine at the last part."""
    lines = [f"# {name}", "", *_machine(machine), *tables(last)]
    if parts := [(r.case, f"{r.value:.0f}") for r in _of_bench(last, "part")]:
        lines += [*table(("part", "s"), parts), ""]
    if failures := [(r.bench, r.case, r.details["why"]) for r in last.values() if r.metric == FAILED]:
        lines += [*table(("failed", "case", "why"), failures), ""]
    return "\n".join(lines)


def gpu_tables(results: Path) -> list[str]:
    """Return the tables of each GPU, or those without figures if no GPU was measured."""
    lines = []
    for folder in sorted(path.parent for path in results.glob("*/gpu.jsonl")):
        records = read(folder / "gpu.jsonl")
        if any(machine["engine"] != HOST.engine for machine, _ in records):  # otherwise it was a dry run
            dates = sorted({machine["date"][:10] for machine, _ in records})
            when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
            lines += [f"[{folder.name}]({folder.name}/summary.md), {when}", ""]
            lines += tables(latest(record for _, record in records))
    return lines or tables({})


def tables(last: Latest) -> list[str]:
    """Return all tables, each with its title and aim."""
    lines = []
    for made in TABLES:
        rows = list(made.rows(last))
        lines += [f"**{made.title}**", "", *([f"Aim: {made.aim}.", ""] if made.aim else ())]
        lines += [*(table(made.head, rows) if rows else [NOT_MEASURED]), ""]
    return lines


def value_of(last: Latest, bench: str, case: str, metric: str) -> str:
    """Return a figure, "" if there is none."""
    record = last.get((bench, case, metric))
    return "" if record is None or record.value is None else short(record.value, 4)


def _of_bench(last: Latest, bench: str) -> list[Record]:
    """Return the records of a bench that have a value."""
    return [record for record in last.values() if record.bench == bench and record.value is not None]


def _machine(machine: dict[str, Any]) -> Iterator[str]:
    """Yield the paragraphs that describe the machine, each with an empty line after it."""
    if machine.get("engine") == HOST.engine:
        yield from ("A dry run without a GPU: its times say nothing.", "")
    for name in ("gpu", "packages"):
        if values := machine.get(name):
            yield from (", ".join(f"{key} {value}" for key, value in values.items()), "")
    ours = [f"{key} {machine[key]}" for key in ("mucudnn", "commit", "date", "python") if key in machine]
    yield from (", ".join(ours), "")


def _cliff(last: Latest) -> Rows:
    for record in _of_bench(last, "cliff"):
        first = short(record.details["first_ms"], 4)
        yield record.case, record.metric, short(record.value or 0, 4), first


def _engines(last: Latest) -> Rows:
    for column, pass_ in product(TYPES, PASSES):
        records = [r for r in _of_bench(last, "engines") if r.case.endswith(f" {pass_}, {column}")]
        if records:
            run = statistics.median(record.value or 0 for record in records)
            yield f"{column}, {pass_}", f"{len(records)}", f"{run:.0f}", *(_needed(records, n) for n in SIZES)


def _needed(records: list[Record], size: int) -> str:
    """Return the median of the least workspace with tensor cores at a mini-batch size."""
    sizes = [record.details["sizes"].get(str(size), {}) for record in records]
    least = [needed for at in sizes if (needed := at.get("least_workspace_with_tensor_cores")) is not None]
    return f"{statistics.median(least) / MIB:.3g} ({len(least)} kernels)" if least else "none"


def _columns(last: Latest) -> Rows:
    benches = [bench for bench in dict.fromkeys(key[0] for key in last) if bench.endswith(tuple(COLUMNS))]
    for bench, (group, (networks, part)), limit in product(benches, GROUPS.items(), LIMITS):
        records = [
            record
            for (column, case, metric), record in last.items()
            if (column, metric) == (bench, f"speedup within {limit // MIB} MiB")
            and case.startswith(networks)
            and part in record.details["problem"]
        ]
        ratios = [record.value for record in records if record.value is not None]
        of = [ratio for record in records if (ratio := record.details["of_unlimited"])]
        if ratios:
            yield (
                bench, group, f"{limit // MIB}",
                f"{statistics.geometric_mean(ratios):.2f}", f"{max(ratios):.2f}", f"{min(ratios):.2f}",
                f"{sum(ratio > 1.05 for ratio in ratios)} of {len(ratios)}", f"{len(records) - len(ratios)}",
                f"{statistics.geometric_mean(of):.2f}" if of else NOT_MEASURED,
                f"{sum(ratio <= 1.05 for ratio in of)} of {len(of)}",
            )  # fmt: skip


def _training(last: Latest) -> Rows:
    for network, way in product(GPU.networks, WAYS):
        case = f"{network}, {way}"
        step, tuned = (last.get(("training", f"{network}, {name}", "step")) for name in (way, BENCHMARK))
        if step and step.value:
            rate = f"{tuned.value / step.value:.2f}" if tuned and tuned.value else ""
            figures = [value_of(last, "training", case, metric) for metric in ("step", "first step", PEAK)]
            journal = [str(step.details.get(f"journal_bytes_{when}", "")) for when in ("before", "added")]
            yield case, rate, *figures, *journal


def _memory(last: Latest) -> Rows:
    """Yield a row for each network and way: its figures, or the reason why there are none."""
    for network, way in product(GPU.planned, MEMORY_WAYS):
        case = f"{network}, {way}"
        if step := last.get(("memory", case, "step")):
            figures = [value_of(last, "memory", case, metric) for metric, _ in MEMORY_METRICS.values()]
            yield case, figures[0] or str(step.details.get("why", NOT_MEASURED)), *figures[1:]


def _checks(last: Latest) -> Rows:
    """Yield the row of the errors of divided results."""
    records = [r for r in last.values() if r.bench == "equality" and r.metric != FAILED]
    ratios = [r.value for r in records if r.value is not None]
    why = Counter(str(r.details.get("why", "no reason")) for r in records if r.value is None)
    largest = [f"at most {max(ratios):.2f} in {len(ratios)}"] if ratios else []
    answer = "; ".join([*largest, *(f"{count} without: {reason}" for reason, count in why.items())])
    yield "error of divided results relative to the undivided error", "at most 2", answer or NOT_MEASURED


TABLES = (
    Table(
        "bf16 3×3 of stride 2 on 513² (pytorch#128936)",
        "at most 25 ms with N=64 and 512 MiB under `mucudnn run`",
        ("case", "what", "ms", "first call ms"), _cliff,
    ),
    Table(
        "Algorithms that run: medians of their number, and of the least workspace with tensor cores", "",
        ("engines", "kernels", "run", *(f"MiB at N={size}" for size in SIZES)), _engines,
    ),
    Table(
        "Speedup by division over the best undivided algorithm within a limit, N=256, then the time relative "
        "to the fastest undivided algorithm without a limit",
        "within 64 MiB at least 3× in fp16, TF32 and bf16 NCHW and about 1× in NHWC; AlexNet in fp32 above "
        "1.63×; DeepBench in fp32 up to 2.31× and 3.85×, as in the paper; nothing below 0.98×; at most 1.05 "
        "of the time without a limit",
        ("column", "kernels", "limit MiB", "geometric mean", "best", "worst", "above 1.05×",
         "nothing undivided fits", "time of unlimited", "within 5 %"), _columns,
    ),
    Table(
        "Training steps within 512 MiB",
        "at least 0.95 of cudnn.benchmark's speed, at most 512 MiB more than stock's peak, and 0 bytes "
        "measured in the second process",
        ("training", "speed relative to cudnn.benchmark", "step ms", "first step ms", "peak MiB",
         "bytes measured before", "meanwhile"), _training,
    ),
    Table(
        "Training steps in a part of stock's peak memory", "",
        ("memory", *(f"{metric} {unit}" for metric, unit in MEMORY_METRICS.values())), _memory,
    ),
    Table("Checks", "", ("check", "aim", "figure"), _checks),
)  # fmt: skip

"""The page `summary.md` of a results folder: each question with its aim and figure, and detailed tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import product
from typing import Any

from bench.lib.answers import NOT_MEASURED, table
from bench.lib.record import Record, read
from bench.suites.gpu.columns import LIMITS
from bench.suites.gpu.engines import TYPES
from bench.suites.gpu.memory import METRICS, OTHERS, PLANS, STOCK
from bench.suites.gpu.questions import Found, latest, questions, ratios_of, short, value_of
from bench.suites.gpu.run import FAILED
from bench.suites.gpu.setting import COLUMNS, GPU, HOST, MIB
from bench.suites.gpu.store import Store
from bench.suites.gpu.training import PEAK, WAYS
from mucudnn.problems.kernels import PASSES


def write_summary(store: Store) -> None:
    """Write `summary.md` from the records of a results folder."""
    records = read(store.records)
    machine = records[-1][0] if records else {}
    text = summary(store.folder.name, machine, latest(record for _, record in records))
    store.summary.write_text(text, "utf-8")


def summary(name: str, machine: dict[str, Any], found: Found) -> str:
    """Return the text of the page; `machine` describes the machine at the last part."""
    lines = [
        f"# {name}",
        "",
        *_machine(machine),
        *table(("question", "aim", "figure"), questions(found)),
        "",
        *table(("pytorch#128936", "what", "ms", "first call ms, or by what"), _cliff(found)),
        "",
        *table(("engines", "kernels", "run", *(f"MiB at N={size}" for size in SIZES)), _engines(found)),
        "",
        "Medians over kernels: of the algorithms that run, of the least workspace of one with tensor cores.",
        "Each algorithm with its notes, times and workspaces is in measurements.jsonl.gz.",
        "",
        "Divided over the best undivided, N=256, both within a limit and run whole in turns; then the time",
        "of what is chosen within the limit, of that of the fastest undivided without any.",
        "",
        *table(COLUMNS_HEAD, _columns(found)),
        "",
        *table(
            ("training", "step ms", "first step ms", "peak MiB", "bytes measured before", "meanwhile"),
            _training(found),
        ),
    ]
    lines += [
        "",
        *table(("memory", *(f"{metric} {unit}" for metric, unit in METRICS.values())), _memory(found)),
    ]
    parts = list(_parts(found))
    if parts:
        lines += ["", *table(("part", "s", "SM clock MHz, median", "least and most that was sampled"), parts)]
    failures = [(r.bench, r.case, r.details["why"]) for r in found.values() if r.metric == FAILED]
    if failures:
        lines += ["", *table(("failed", "case", "why"), failures)]
    return "\n".join(lines) + "\n"


def _machine(machine: dict[str, Any]) -> Iterator[str]:
    """Yield the paragraphs that describe the machine, each with an empty line after it."""
    if machine.get("engine") == HOST.engine:
        yield from ("A dry run without a GPU: its times say nothing.", "")
    for name in ("gpu", "packages"):
        if said := machine.get(name):
            yield from (", ".join(f"{key} {value}" for key, value in said.items()), "")
    ours = [f"{key} {machine[key]}" for key in ("mucudnn", "commit", "date", "python") if key in machine]
    yield from (", ".join(ours), "")


SIZES = (256, 64, 16, 1)
COLUMNS_HEAD = (
    "column", "network", "limit MiB", "geometric mean", "best", "worst", "above 1.05×",
    "time of unlimited", "within 5 %",
)  # fmt: skip


def _parts(found: Found) -> Iterator[tuple[str, ...]]:
    """Yield a row for each part: name, seconds, median clock, ranges of the sampled values."""
    for (bench, part, metric), record in found.items():
        if bench == "part" and metric == "took":
            clocks = found.get(("clocks", part, "SM clock, median"))
            sampled = ", ".join(
                f"{name} {least:g} to {most:g}"
                for name, (least, most) in (clocks.details if clocks else {}).items()
            )
            clock = f"{clocks.value:g}" if clocks and clocks.value else NOT_MEASURED
            yield part, f"{record.value:.0f}", clock, sampled


def _cliff(found: Found) -> Iterator[tuple[str, ...]]:
    for record in found.values():
        if record.bench == "cliff" and record.value is not None:
            more = record.details.get("by") or short(record.details["first_ms"])
            yield record.case, record.metric, short(record.value), more


def _engines(found: Found) -> Iterator[tuple[str, ...]]:
    for column, pass_ in product(TYPES, PASSES):
        records = [
            record for record in found.values()
            if record.bench == "engines" and record.value and record.case.endswith(f" {pass_}, {column}")
        ]  # fmt: skip
        if records:
            run = statistics.median(record.value or 0 for record in records)
            yield f"{column}, {pass_}", f"{len(records)}", f"{run:.0f}", *(_needed(records, n) for n in SIZES)


def _needed(records: list[Record], size: int) -> str:
    at = [record.details["sizes"].get(str(size), {}) for record in records]
    least = [needed for found in at if (needed := found.get("least_workspace_with_tensor_cores")) is not None]
    return f"{statistics.median(least) / MIB:.3g} ({len(least)} kernels)" if least else "none"


def _columns(found: Found) -> Iterator[tuple[str, ...]]:
    benches = [bench for bench in dict.fromkeys(key[0] for key in found) if bench.endswith(tuple(COLUMNS))]
    for bench, network, limit in product(benches, ("alexnet", "resnet50", "deepbench"), LIMITS):
        records = ratios_of(found, bench, (network,), limit)
        ratios = [record.value for record in records if record.value is not None]
        of = [ratio for record in records if (ratio := record.details["of_unlimited"])]
        if ratios:
            yield (
                bench, network, f"{limit // MIB}",
                f"{statistics.geometric_mean(ratios):.2f}", f"{max(ratios):.2f}", f"{min(ratios):.2f}",
                f"{sum(ratio > 1.05 for ratio in ratios)} of {len(ratios)}",
                f"{statistics.geometric_mean(of):.2f}" if of else NOT_MEASURED,
                f"{sum(ratio <= 1.05 for ratio in of)} of {len(of)}",
            )  # fmt: skip


def _memory(found: Found) -> Iterator[tuple[str, ...]]:
    """Yield a row for each network and way: its figures, or the reason why there are none."""
    for network in GPU.planned:
        for way in (STOCK, *PLANS, *OTHERS):
            case = f"{network}, {way}"
            step = found.get(("memory", case, "step"))
            why = step.details.get("why", "") if step else ""
            figures = [value_of(found, "memory", case, metric, "") for metric, _ in METRICS.values()]
            if not any(figures):
                figures[0] = why or NOT_MEASURED
            yield case, *figures


def _training(found: Found) -> list[tuple[str, ...]]:
    rows = []
    for network in GPU.networks:
        for way in WAYS:
            case = f"{network}, {way}"
            metrics = ("step", "first step", PEAK)
            figures = [value_of(found, "training", case, metric, "") or NOT_MEASURED for metric in metrics]
            step = found.get(("training", case, "step"))
            details = step.details if step else {}
            journal = [str(details.get(f"journal_bytes_{when}", "")) for when in ("before", "added")]
            rows.append((case, *figures, *journal))
    return rows

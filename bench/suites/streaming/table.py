"""The tables of one huge sample in tiles, which need no PyTorch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench.lib.answers import short, table
from bench.lib.record import Record

HEAD = (
    "sample", "run", "memory", "resident memory", "time", "largest difference", "PSNR, dB",
    "planned peak over live", "planned in, s",
)  # fmt: skip


def tables(records: Sequence[Record]) -> Iterator[str]:
    """Yield the lines of a table of measured runs, and of one of modelled times."""
    samples = [each for each in records if each.metric == "MiB"]
    yield from table(HEAD, (row for sample in samples for row in _rows(sample, records)))
    modelled = [each for each in records if each.bench == "modelled_streaming"]
    yield ""
    yield from table(
        ("decoder of Stable Diffusion, fp16, modelled", "time over that without a limit"),
        ((each.case, "no plan" if each.value is None else short(each.value)) for each in modelled),
    )


def _rows(sample: Record, records: Sequence[Record]) -> Iterator[Sequence[str]]:
    name, whole = sample.case.removesuffix(": whole"), sample.details
    seconds, resident = short(statistics.median(whole["seconds"])), whole["resident"]
    yield (
        name,
        "whole",
        f"{short(sample.value or 0)} MiB",
        f"{short(resident / 2**20)} MiB",
        f"{seconds} s",
        *[""] * 4,
    )
    own = [each for each in records if each.case.startswith(f"{name}: ")]
    times = {each.case: each.value for each in own if each.metric == "time"}
    for each in own:
        if each.metric == "memory":
            its, planned = each.details, ["", ""]
            if "planned" in its:
                planned = [short(its["planned"] / its["live"]), short(its["planning_s"])]
            yield (
                name, each.case.removeprefix(f"{name}: "), short(each.value or 0),
                short(its["resident"] / resident), short(times[each.case] or 0), f"{its['error']:.1e}",
                short(its["psnr"]), *planned,
            )  # fmt: skip

"""The tables of one huge sample in tiles, which need no PyTorch."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from bench.lib.answers import short, table
from bench.lib.record import Record

HEAD = (
    "sample", "run", "memory", "time", "largest difference", "PSNR, dB", "planned peak over live",
    "planned in, s",
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
    name, seconds = sample.case.removesuffix(": whole"), statistics.median(sample.details["seconds"])
    yield name, "whole", f"{short(sample.value or 0)} MiB", f"{short(seconds)} s", "", "", "", ""
    own = [each for each in records if each.case.startswith(f"{name}: ")]
    times = {each.case: each.value for each in own if each.metric == "time"}
    for each in own:
        if each.metric == "memory":
            way, its = each.case.removeprefix(f"{name}: "), each.details
            is_planned = "planned" in its
            yield (
                name, way, short(each.value or 0), short(times[each.case] or 0), f"{its['error']:.1e}",
                short(its["psnr"]), short(its["planned"] / its["live"]) if is_planned else "",
                short(its["planning_s"]) if is_planned else "",
            )  # fmt: skip

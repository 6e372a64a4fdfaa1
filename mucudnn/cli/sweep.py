"""The answer of `mucudnn optimize --sizes`: time against mini-batch size, and the sizes at which it jumps."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mucudnn.cli.terminal import Answer, Lines, table
from mucudnn.costs.records import Machine
from mucudnn.output.text import micro_batches, milliseconds, ratio, short_names
from mucudnn.plans.json_forms import groups_json, kernel_fields, machine_json
from mucudnn.plans.sweep import Cliff, Sweep, SweepPoint
from mucudnn.problems.descriptor import short_text
from mucudnn.sizes import format_size
from mucudnn.solver import ChannelGroups, Configuration


@dataclass(frozen=True)
class Swept(Answer):
    """The sweeps of some kernels within a limit. `words` are those of the command without its sizes."""

    machine: Machine
    limit: int | None
    new_measurements: int
    sweeps: tuple[Sweep, ...]
    network: str
    words: Sequence[str]

    def content(self) -> dict[str, Any]:
        """Return the form that docs/reference/json.md describes."""
        return {
            **machine_json(self.machine),
            "workspace_limit": self.limit,
            "new_measurements": self.new_measurements,
            "kernels": [
                {
                    **kernel_fields(swept.kernel, swept.kernel.count),
                    "points": [
                        {
                            "mini_batch": point.mini_batch,
                            "undivided": _make_configuration_json(point.undivided),
                            "undivided_is_busy": point.is_busy,
                            "divided": _make_configuration_json(point.divided),
                        }
                        for point in swept.points
                    ],
                    "cliffs": [cliff.point.mini_batch for cliff in swept.cliffs],
                }
                for swept in self.sweeps
            ],
        }

    def lines(self) -> Lines:
        """Yield a table for each kernel, and the command that optimizes at the first cliff."""
        allowed = f"{format_size(self.limit)} of workspace" if self.limit is not None else "any workspace"
        yield f"{self.network}: within {allowed}"
        yield f"on {self.machine}"
        yield ""
        labels = [s.kernel.name or short_text(s.kernel.problem, mini_batch=False) for s in self.sweeps]
        for name, swept in zip(short_names(labels), self.sweeps, strict=True):
            yield f"{name} {swept.kernel.pass_}"
            sizes = {cliff.point.mini_batch for cliff in swept.cliffs}
            yield table(
                ">mini-batch", "ms>ms", ">ms/sample", "", "ms>divided ms", ">ms/sample", "micro-batches",
                rows=(_make_row(point, is_cliff=point.mini_batch in sizes) for point in swept.points),
            )  # fmt: skip
            yield ""
            yield from [cliff_sentence(cliff, self.limit) for cliff in swept.cliffs] or ["No cliff."]
            yield ""
        cliffs = [str(cliff.point.mini_batch) for swept in self.sweeps for cliff in swept.cliffs]
        at_first = ["--batch", cliffs[0]] if cliffs else []
        yield f"Next: {shlex.join(['mucudnn', *self.words, *at_first])}"


def _make_row(point: SweepPoint, *, is_cliff: bool) -> tuple[Any, ...]:
    undivided, divided = point.undivided, point.divided
    return (
        point.mini_batch,
        undivided and undivided.time_ms,
        _format_fine(point.per_sample),
        "cliff" if is_cliff else "",
        divided and divided.time_ms,
        _format_fine(point.divided_per_sample),
        micro_batches(divided) if divided else "nothing fits",
    )


def cliff_sentence(cliff: Cliff, limit: int | None) -> str:
    """Return a sentence about the jump at a cliff, and about the time that division gives there."""
    point, before = cliff.point, cliff.before
    if point.undivided is None:
        jump = f"At {point.mini_batch} nothing undivided fits {format_size(limit)} of workspace"
    else:
        assert point.per_sample is not None
        assert before.per_sample is not None
        jump = (
            f"From {before.mini_batch} to {point.mini_batch} the time of a sample jumps "
            f"{ratio(point.per_sample / before.per_sample)}, from {_format_fine(before.per_sample)} to "
            f"{_format_fine(point.per_sample)} ms"
        )
    if point.divided is None or point.divided == point.undivided:
        return f"{jump}; division does not help."
    parts, per_sample = micro_batches(point.divided, " + "), _format_fine(point.divided_per_sample)
    return f"{jump}; divided into {parts} it is {per_sample} ms."


def _format_fine(value: float | None) -> str:
    """Format the milliseconds of one sample, with three significant digits below 1 ms; a dash for None."""
    return milliseconds(value) if value is None or value >= 1 else f"{value:.3g}"


def _make_configuration_json(configuration: Configuration | ChannelGroups | None) -> dict[str, Any] | None:
    if configuration is None:
        return None
    if isinstance(configuration, ChannelGroups):
        return groups_json(configuration)
    return {
        "parts": [{"micro_batch": p.micro_batch, "algorithm": p.algorithm} for p in configuration.parts],
        "time_ms": configuration.time_ms,
        "workspace": configuration.workspace,
    }

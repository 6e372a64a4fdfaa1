"""The answer of `mucudnn optimize --sizes`: time against mini-batch size, and the sizes at which it jumps."""

from dataclasses import asdict, dataclass
from typing import Any

from mucudnn.costs.records import Machine
from mucudnn.output.answers import Answer, Lines, table
from mucudnn.output.text import fine_milliseconds, micro_batches, ratio
from mucudnn.plans.json_forms import kernel_fields
from mucudnn.plans.sweep import Cliff, Sweep
from mucudnn.problems.descriptor import short_text
from mucudnn.sizes import format_size


@dataclass(frozen=True)
class Swept(Answer):
    """The sweeps of some kernels within a limit. `command` is the one that was typed, without its sizes."""

    machine: Machine
    limit: int | None
    new_measurements: int
    sweeps: tuple[Sweep, ...]
    network: str
    command: str

    def content(self) -> dict[str, Any]:
        """Return the form that docs/reference/json.md describes."""
        kernels = [
            {
                **kernel_fields(swept.kernel, swept.kernel.count),
                "points": _list_points(swept),
                "cliffs": _list_cliffs(swept),
                "undecided": _list_cliffs(swept, is_undecided=True),
            }
            for swept in self.sweeps
        ]
        return {
            **asdict(self.machine),
            "workspace_limit": self.limit,
            "new_measurements": self.new_measurements,
            "kernels": kernels,
        }

    def lines(self) -> Lines:
        """Yield a table for each kernel, and the command that optimizes at the first cliff."""
        allowed = f"{format_size(self.limit)} of workspace" if self.limit is not None else "any workspace"
        yield f"{self.network}: within {allowed}"
        yield f"on {self.machine}"
        yield ""
        for swept in self.sweeps:
            name = swept.kernel.name or short_text(swept.kernel.problem, mini_batch=False)
            yield f"{name} {swept.kernel.pass_}"
            yield table(
                ">mini-batch", "ms>undivided ms", "fine>sample ms", "ms>divided ms", "fine>divided sample ms",
                "divided", "is cliff", rows=_list_points(swept),
            )  # fmt: skip
            yield ""
            yield from [cliff_sentence(cliff, self.limit) for cliff in swept.cliffs] or ["No cliff."]
            yield ""
        yield from filter(None, [self.machine.note_on_times])
        cliffs = [size for swept in self.sweeps for size in _list_cliffs(swept)]
        at_first = f" --batch {cliffs[0]}" if cliffs else ""
        yield f"Next: {self.command}{at_first}"


def _list_cliffs(swept: Sweep, *, is_undecided: bool = False) -> list[int]:
    return [cliff.point.mini_batch for cliff in swept.cliffs if cliff.is_undecided == is_undecided]


def _list_points(swept: Sweep) -> list[dict[str, Any]]:
    return [
        {
            "mini_batch": point.mini_batch,
            "undivided_ms": point.undivided and point.undivided.time_ms,
            "undivided_is_busy": point.is_busy,
            "sample_ms": point.per_sample,
            "divided": point.divided and micro_batches(point.divided),
            "divided_ms": point.divided and point.divided.time_ms,
            "divided_sample_ms": point.divided_per_sample,
            "is_cliff": point.mini_batch in _list_cliffs(swept),
        }
        for point in swept.points
    ]


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
            f"{ratio(point.per_sample / before.per_sample)}, from {fine_milliseconds(before.per_sample)} to "
            f"{fine_milliseconds(point.per_sample)} ms"
        ) + " (undecided: repeated times vary too much)" * cliff.is_undecided
    if point.divided is None or point.divided == point.undivided:
        return f"{jump}; division does not help."
    parts, per_sample = micro_batches(point.divided, " + "), fine_milliseconds(point.divided_per_sample)
    return f"{jump}; divided into {parts} it is {per_sample} ms."

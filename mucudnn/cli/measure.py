"""Measurements without decisions, and workspaces without measurements, for `mucudnn optimize`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mucudnn.cli.terminal import Terminal, opened_cache
from mucudnn.costs.records import SUCCESS, Listed, Machine
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.candidates import candidates
from mucudnn.measuring.described_device import open_planner, read_properties
from mucudnn.output.answers import Answer, Lines, table
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.solver import is_tiled

_MEASURED = ("algorithm", "ms>time ms", "is busy", "B>workspace")
_LISTED = (">engines", "B>least workspace", "B>with tensor cores", "B>in tiles")
_NO_TIMES = (
    "These are engines of the graph API: cuDNN plans its legacy algorithms on a GPU only, and only a GPU "
    "gives times."
)


@dataclass(frozen=True)
class Measured(Answer):
    """The measurements of some kernels in a cache; of a device that is only described, its engines."""

    machine: Machine
    cache: Path
    new: int
    rows: list[dict[str, Any]]
    next_command: str | None = None

    def lines(self) -> Lines:
        """Yield a table, and the next command."""
        head, kind, last = _LISTED, "enumeration", _NO_TIMES
        if self.next_command:
            head, kind, last = _MEASURED, "measurement", f"Next: {self.next_command}"
        yield table("kernel", "pass", ">micro-batch", *head, rows=self.rows)
        yield ""
        yield f"{self.new} new {kind}{'s' * (self.new != 1)} on {self.machine}, kept in {self.cache}"
        yield last


def measure(bench: Bench, kernels: Sequence[Kernel], policy: str, next_command: str) -> Measured:
    """Measure what the cache lacks of some kernels, and return all of their measurements."""
    benchmark(bench, kernels, policy)
    rows = [
        {
            "kernel": kernel.label, "pass": kernel.pass_,
            "micro_batch": row.micro_batch, "algorithm": row.algorithm,
            "time_ms": row.time_ms or 0.0, "is_busy": row.busy_tries > 0, "workspace": row.workspace,
        }
        for kernel in kernels
        for row in bench.cache.measurements(bench.machine, kernel)
        if row.micro_batch in usable_sizes(policy, kernel) and row.status == SUCCESS
    ]  # fmt: skip
    return Measured(bench.machine, bench.cache.path, bench.made.total(), rows, next_command)


def plan_engines(engine: str, properties: str, kernels: Sequence[Kernel], policy: str) -> Measured:
    """Ask cuDNN for the engines of a described device, and keep them in the cache."""
    planner, machine = open_planner(engine, read_properties(properties))
    terminal = Terminal()
    with opened_cache(terminal, needed=True) as cache:
        new, rows = 0, []
        for kernel in terminal.track(kernels, "Planning"):
            sizes = usable_sizes(policy, kernel)
            new += len({*sizes} - cache.enumerations(machine, kernel).keys())
            for size, listed in candidates(planner, machine, cache, kernel, sizes).items():
                row = {"kernel": kernel.label, "pass": kernel.pass_, "micro_batch": size}
                rows.append({**row, **_summarize(listed)})
        return Measured(machine, cache.path, new, rows)


def _summarize(listed: Sequence[Listed]) -> dict[str, int | None]:
    whole = [engine for engine in listed if not is_tiled(engine.algorithm)]
    cores = [engine for engine in listed if "tensor_op" in engine.notes.split()]
    return {
        "engines": len({engine.algorithm.partition(".")[0].partition("_")[0] for engine in listed}),
        "least_workspace": _least(whole),
        "with_tensor_cores": _least([engine for engine in cores if engine in whole]),
        "in_tiles": _least([engine for engine in cores if engine not in whole]),
    }


def _least(engines: Sequence[Listed]) -> int | None:
    return min((engine.workspace for engine in engines), default=None)

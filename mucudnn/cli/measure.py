"""Measurements without decisions, and workspaces without measurements, for `mucudnn optimize`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mucudnn.cli.terminal import Answer, Lines, Terminal, opened_cache, table
from mucudnn.costs.records import SUCCESS, Listed, Machine
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.candidates import candidates
from mucudnn.measuring.described_device import open_planner, plan, read_properties
from mucudnn.output.text import short_names
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.solver import is_tiled


@dataclass(frozen=True)
class Measured(Answer):
    """The measurements of some kernels in a cache."""

    machine: Machine
    new_measurements: int
    cache: Path
    measurements: list[dict[str, Any]]
    next_command: str

    def lines(self) -> Lines:
        """Yield a table of the measurements, and the next command."""
        yield table(
            "kernel", "pass", ">micro-batch", "algorithm", ">ms", "", "B>workspace",
            rows=(
                (*list(row.values())[:4], f"{row['time_ms']:.3f}", "busy" if row["is_busy"] else "",
                 row["workspace"])
                for row in self.measurements
            ),
        )  # fmt: skip
        yield ""
        new = self.new_measurements
        yield f"{new} new measurement{'s' * (new != 1)} on {self.machine}, kept in {self.cache}"
        yield f"Next: {self.next_command}"


@dataclass(frozen=True)
class Listing(Answer):
    """The engines of a described device, and the least workspace of each kind of them."""

    machine: Machine
    new_enumerations: int
    cache: Path
    engines: list[dict[str, Any]]

    def lines(self) -> Lines:
        """Yield a table of the engines, and what they leave open."""
        yield table(
            "kernel", "pass", ">micro-batch", ">engines", "B>least workspace", "B>with tensor cores",
            "B>in tiles", rows=(list(row.values()) for row in self.engines),
        )  # fmt: skip
        yield ""
        new = self.new_enumerations
        machine = f"{self.machine.device}, {self.machine.library}"
        yield f"{new} new enumeration{'s' * (new != 1)} of {machine}, kept in {self.cache}"
        yield (
            "These are engines of the graph API: cuDNN plans its legacy algorithms on a GPU only, and only a "
            "GPU gives times."
        )


def measure(bench: Bench, kernels: Sequence[Kernel], policy: str, next_command: str) -> Measured:
    """Measure what the cache lacks of some kernels, and return all of their measurements."""
    benchmark(bench, kernels, policy)
    rows = [
        {
            "kernel": name, "pass": kernel.pass_, "micro_batch": row.micro_batch, "algorithm": row.algorithm,
            "time_ms": row.time_ms or 0.0, "is_busy": row.busy_tries > 0, "workspace": row.workspace,
        }
        for name, kernel in _named(kernels)
        for row in bench.cache.measurements(bench.machine, kernel)
        if row.micro_batch in usable_sizes(policy, kernel) and row.status == SUCCESS
    ]  # fmt: skip
    return Measured(bench.machine, bench.made.total(), bench.cache.path, rows, next_command)


def plan_engines(engine: str, properties: str, kernels: Sequence[Kernel], policy: str) -> Listing:
    """Ask cuDNN for the engines of a described device, and keep them in the cache."""
    planner, machine = open_planner(engine, read_properties(properties))
    terminal = Terminal()
    with opened_cache(terminal, needed=True) as cache:
        new = plan(planner, machine, cache, kernels, policy, terminal)
        rows = [
            {"kernel": name, "pass": kernel.pass_, "micro_batch": size, **_summarize(listed)}
            for name, kernel in _named(kernels)
            for size, listed in candidates(
                planner, machine, cache, kernel, usable_sizes(policy, kernel)
            ).items()
        ]
        return Listing(machine, new, cache.path, rows)


def _named(kernels: Sequence[Kernel]) -> Iterator[tuple[str, Kernel]]:
    return zip(short_names([kernel.label for kernel in kernels]), kernels, strict=True)


def _summarize(listed: Sequence[Listed]) -> dict[str, int | None]:
    whole = [engine for engine in listed if not is_tiled(engine.algorithm)]
    cores = [engine for engine in listed if "tensor_op" in engine.notes.split()]
    return {
        "engines": len({engine.algorithm.partition(".")[0].partition("_")[0] for engine in listed}),
        "workspace": _least(whole),
        "workspace_with_tensor_cores": _least([engine for engine in cores if engine in whole]),
        "workspace_in_tiles": _least([engine for engine in cores if engine not in whole]),
    }


def _least(engines: Sequence[Listed]) -> int | None:
    return min((engine.workspace for engine in engines), default=None)

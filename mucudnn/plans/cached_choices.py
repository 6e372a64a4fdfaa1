"""The choice that the measurements in a cache lead to for each kernel, within the usual workspace limit."""

from contextlib import suppress
from dataclasses import dataclass

from mucudnn import settings
from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import FRAMEWORK, STOCK, Machine
from mucudnn.measuring.source import stock_rows
from mucudnn.output.text import micro_batches
from mucudnn.plans.decide import fastest_configuration, keep_undivided
from mucudnn.problems.kernels import Kernel

WAYS = DIVIDED, ALGORITHM, LEFT = "divided", "by another algorithm", "left to PyTorch"


@dataclass(frozen=True)
class CachedChoice:
    """The choice for a kernel at its largest measured mini-batch.

    `way` is DIVIDED, ALGORITHM or LEFT. Without a choice all are None. `is_busy` says that other programs
    disturbed its measurements.
    """

    mini_batch: int | None = None
    way: str | None = None
    configuration: str | None = None
    time_ms: float | None = None
    is_busy: bool = False


class CachedChoices:
    """The choices of one cache. A framework's rows count for the engines on its device and threads."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self.limit: int | None = settings.WORKSPACE_LIMIT.read()
        machines = cache.machines()
        self._engines = {machine.identity: machine for machine in machines if machine.engine != FRAMEWORK}
        self.frameworks = {machine.library for machine in machines if machine.engine == FRAMEWORK}
        self._frameworks = [machine for machine in machines if machine.engine == FRAMEWORK]

    def find(self, key: str, pass_: str, device: str, library: str, threads: int) -> CachedChoice | None:
        """Return the choice for a kernel on an engine; None without times, and for a damaged `key`."""
        machine = self._engines.get((device, library, threads))
        with suppress(ValueError, TypeError):
            if machine is not None:
                return self._choose(Kernel(parse_descriptor(key)[0], pass_), machine)
        return None

    def _choose(self, kernel: Kernel, machine: Machine) -> CachedChoice | None:
        rows = [row for row in self._cache.measurements(machine, kernel) if row.time_ms is not None]
        if not rows:
            return None
        stock = [
            row for own in self._frameworks_beside(machine) for row in self._cache.measurements(own, kernel)
        ]
        sizes = [row.micro_batch for row in stock if row.algorithm == STOCK]
        kernel = kernel.at(max(sizes, default=max(row.micro_batch for row in rows)))
        rows = [*(row for row in rows if row.micro_batch <= kernel.mini_batch), *stock_rows(stock, kernel)]
        chosen = fastest_configuration(rows, kernel, self.limit)
        if chosen is None:
            return None
        chosen = keep_undivided(chosen, rows, kernel, self.limit)
        used = {(part.micro_batch, part.algorithm, part.time_ms) for part in chosen.parts}
        is_busy = any(
            row.busy_tries and (row.micro_batch, row.algorithm, row.time_ms) in used for row in rows
        )
        way = ALGORITHM if len(chosen.parts) == 1 else DIVIDED
        if {part.algorithm for part in chosen.parts} == {STOCK} and way == ALGORITHM:
            way = LEFT
        text = micro_batches(chosen, " + ")
        return CachedChoice(kernel.mini_batch, way, text, chosen.time_ms, is_busy)

    def _frameworks_beside(self, machine: Machine) -> list[Machine]:
        """Return the framework on the engine's device and threads, the latest of several versions."""
        here = (machine.device, machine.threads)
        return [own for own in self._frameworks if (own.device, own.threads) == here][-1:]

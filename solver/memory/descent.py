"""A local search: a decision changes in one or two places as long as its simulated time falls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..workspace.configuration import TIE
from .copies import CopySteps
from .simulation import KEEP, OFFLOAD, RECOMPUTE, Codes, Integers, Simulator

LITTLE = 1e-4  # a round of single changes that gains less is followed by exchanges


@dataclass(slots=True)
class TimedDecision:
    """A decision and its time, with copies in that begin at most `window` steps early."""

    time_ms: float
    codes: Codes
    configurations: Integers
    window: int | None

    @property
    def schedule(self) -> dict[int, CopySteps]:
        """The steps that bound the copies."""
        if self.window is not None:
            return {}
        return {i: CopySteps(in_from=0) for i in np.flatnonzero(self.codes == OFFLOAD).tolist()}


class Descent:
    """A local search, whose decision is `best`.

    It ends at `target_ms`, after that many evaluations or simulations, or at a decision that no change makes
    faster. The arguments are those of `Search`.
    """

    def __init__(
        self,
        simulator: Simulator,
        memory: int,
        start: TimedDecision,
        *,
        offload: bool,
        recompute: bool,
        target_ms: float,
        evaluations: int,
        simulations: int,
    ) -> None:
        self._simulator, self._memory, self.best = simulator, memory, start
        self._target_ms = target_ms
        self._last = simulator.evaluations + evaluations, simulator.simulations + simulations
        self._ways = [KEEP]
        self._ways += [RECOMPUTE] if recompute else []
        self._ways += [OFFLOAD] if offload else []
        self._tensors: list[int] = np.flatnonzero(simulator.can_leave).tolist()
        self._bound: list[list[int]] = [[] for _ in start.codes]  # the sources and readers of each tensor
        for i, j in zip(simulator.readers.tolist(), simulator.sources.tolist(), strict=True):
            self._bound[i].append(j)
            self._bound[j].append(i)
        self._steps: dict[int, list[int]] = {}  # the kernels of each step
        for k, kernel in enumerate(simulator.work.kernels):
            self._steps.setdefault(kernel.step, []).append(k)

    def run(self) -> None:
        """Change the decision until the search ends."""
        while not self._is_done():
            before = self.best.time_ms
            self._change_singly()
            if self.best.time_ms > before * (1 - LITTLE):
                between = self.best.time_ms
                self._exchange()
                if self.best.time_ms >= between * (1 - TIE):
                    return

    def _is_done(self) -> bool:
        return (
            self.best.time_ms <= self._target_ms
            or self._simulator.evaluations >= self._last[0]
            or self._simulator.simulations >= self._last[1]
        )

    def _change_singly(self) -> None:
        for i in self._tensors:
            for codes in self._change(self.best.codes, i):
                self._take(codes)
            if self._is_done():
                return
        for kernels in self._steps.values():
            for direction in (1, -1):
                while self._shift(kernels, direction):
                    pass
            if self._is_done():
                return

    def _exchange(self) -> None:
        """Let a tensor cost less, the most expensive first, while another one leaves instead or returns."""
        simulator = self._simulator
        smallest = np.zeros(len(simulator.configurations), dtype=np.int64)
        copies_ms = simulator.work.link.milliseconds(simulator.bytes)
        replayed = self.best.codes == RECOMPUTE
        cost = np.where(replayed, simulator.replays_ms(self.best.configurations), copies_ms)
        gone = np.flatnonzero(self.best.codes != KEEP)
        for i in gone[np.argsort(-cost[gone], kind="stable")].tolist():
            for codes in self._change(self.best.codes, i):
                over = simulator.profile(codes, smallest) - self._memory
                worst = int(over.argmax())
                others = simulator.can_leave.copy()
                others[i] = False
                if over[worst] > 0:
                    is_idle = (simulator.freed_from <= worst) & (worst < simulator.needs)
                    others &= is_idle & (codes == KEEP) & (simulator.bytes >= over[worst])
                pairs = (pair for j in np.flatnonzero(others) for pair in self._change(codes, int(j)))
                if any(self._take(pair) or self._is_done() for pair in pairs):
                    break
            if self._is_done():
                return

    def _change(self, codes: Codes, i: int) -> Iterator[Codes]:
        """Yield the choices that differ in one tensor."""
        for way in self._ways:
            is_bound = any(codes[j] == RECOMPUTE for j in self._bound[i])
            if way == codes[i] or (way == RECOMPUTE and (is_bound or not self._simulator.can_return[i])):
                continue
            changed = codes.copy()
            changed[i] = way
            yield changed

    def _shift(self, kernels: list[int], direction: int) -> bool:
        """Give the kernels of a step its next larger or smaller workspace, if that is faster."""
        simulator, configurations = self._simulator, self.best.configurations
        choices = [simulator.work.kernels[k].configurations for k in kernels]
        sizes = sorted({choice.workspace for each in choices for choice in each})
        within = simulator.workspaces(configurations)
        place = sizes.index(within[kernels].max()) + direction
        if not 0 <= place < len(sizes):
            return False
        within[kernels] = sizes[place]
        return self._is_faster(self.best.codes, simulator.fastest_within(within))

    def _take(self, codes: Codes) -> bool:
        """Take other choices, with the same configurations or the fastest ones, if that is faster."""
        same, fastest = self.best.configurations, self._simulator.fit(codes, self._memory)
        is_faster = self._is_faster(codes, same)
        return is_faster or (bool((fastest != same).any()) and self._is_faster(codes, fastest))

    def _is_faster(self, codes: Codes, configurations: Integers) -> bool:
        """Take a decision if it is faster."""
        limit, window = self.best.time_ms * (1 - TIE), self.best.window
        time_ms = self._simulator.time_ms(codes, configurations, self._memory, window, faster_than=limit)
        if time_ms >= limit:
            return False
        self.best = TimedDecision(time_ms, codes, configurations, window)
        return True

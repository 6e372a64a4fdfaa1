"""A local search: a decision changes in one or two places as long as its simulated time falls."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..workspace.configuration import TIE
from .evaluation import KEEP, OFFLOAD, RECOMPUTE, Codes, CopyRules, Evaluator, Integers

LITTLE = 1e-4  # a round of single changes that gains less is followed by exchanges


class Descent:
    """The decision and the counts of a local search.

    It ends at `target_ms`, after that many evaluations or simulations, or at a decision that no change makes
    faster. The arguments are those of `Search`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        memory: int,
        codes: Codes,
        configurations: Integers,
        rules: CopyRules,
        time_ms: float,
        *,
        offload: bool,
        recompute: bool,
        target_ms: float,
        evaluations: int,
        simulations: int,
        has_time: Callable[[], bool],
    ) -> None:
        self._evaluator, self._memory, self._rules = evaluator, memory, rules
        self.codes, self.configurations, self.time_ms = codes.copy(), configurations.copy(), time_ms
        self._target_ms, self._has_time = target_ms, has_time
        self._last = evaluator.evaluations + evaluations, evaluator.simulations + simulations
        self._ways = [KEEP]
        self._ways += [RECOMPUTE] if recompute else []
        self._ways += [OFFLOAD] if offload else []
        self._tensors: list[int] = np.flatnonzero(evaluator.can_leave).tolist()
        self._kernels: list[int] = np.flatnonzero(evaluator.configurations > 1).tolist()
        self._bound: list[list[int]] = [[] for _ in codes]  # the sources and readers of each tensor
        for i, j in zip(evaluator.readers.tolist(), evaluator.sources.tolist(), strict=True):
            self._bound[i].append(j)
            self._bound[j].append(i)

    def run(self) -> None:
        """Change the decision until the search ends."""
        while not self._is_done():
            before = self.time_ms
            self._change_singly()
            if self.time_ms > before * (1 - LITTLE):
                between = self.time_ms
                self._exchange()
                if self.time_ms >= between * (1 - TIE):
                    return

    def _is_done(self) -> bool:
        return (
            self.time_ms <= self._target_ms
            or self._evaluator.evaluations >= self._last[0]
            or self._evaluator.simulations >= self._last[1]
            or not self._has_time()
        )

    def _change_singly(self) -> None:
        for i in self._tensors:
            for way in self._ways:
                if way != self.codes[i] and self._may(i, way):
                    self._take(self.codes, i, way)
            if self._is_done():
                return
        for k in self._kernels:
            for step in (1, -1):
                self._shift(k, step)
            if self._is_done():
                return

    def _shift(self, k: int, step: int) -> bool:
        """Give a kernel its next larger or smaller configuration, if that is faster."""
        index = int(self.configurations[k]) + step
        return 0 <= index < self._evaluator.configurations[k] and self._take(self.configurations, k, index)

    def _take(self, array: Codes | Integers, place: int, value: int) -> bool:
        """Change an entry of the decision, if that is faster."""
        old = array[place]
        array[place] = value
        if self._is_faster():
            return True
        array[place] = old
        return False

    def _is_faster(self) -> bool:
        limit = self.time_ms * (1 - TIE)
        time_ms = self._evaluator.time_ms(
            self.codes, self.configurations, self._memory, self._rules, faster_than=limit
        )
        if time_ms >= limit:
            return False
        self.time_ms = time_ms
        return True

    def _may(self, i: int, way: int) -> bool:
        if way != RECOMPUTE:
            return True
        return bool(self._evaluator.can_return[i]) and all(self.codes[j] != RECOMPUTE for j in self._bound[i])

    def _exchange(self) -> None:
        """Let a tensor cost less, or a kernel run faster, while another tensor leaves instead."""
        work, evaluator = self._evaluator.work, self._evaluator
        replays_ms = evaluator.replays_ms(self.configurations)

        def cost(i: int) -> float:
            size = work.tensors[i].bytes
            if self.codes[i] == RECOMPUTE:
                return float(replays_ms[i])
            return work.link.out_ms(size) + work.link.in_ms(size)

        gone = [i for i in self._tensors if self.codes[i] != KEEP]
        for i in sorted(gone, key=lambda i: -cost(i)):
            for way in self._ways:
                if way != self.codes[i] and self._may(i, way):
                    self._take_with_another(self.codes, i, way)
                if self._is_done():
                    return
        for k in self._kernels:
            if self.configurations[k] + 1 < evaluator.configurations[k]:
                self._take_with_another(self.configurations, k, int(self.configurations[k]) + 1)
            if self._is_done():
                return

    def _take_with_another(self, array: Codes | Integers, place: int, value: int) -> None:
        """Change an entry, and let a tensor leave at the step that then overflows, if both are faster."""
        evaluator = self._evaluator
        old = array[place]
        array[place] = value
        over = evaluator.profile(self.codes, self.configurations) - self._memory
        worst = int(over.argmax())
        is_idle = (evaluator.freed_from <= worst) & (worst < evaluator.needs)
        others = is_idle & (self.codes == KEEP) & (evaluator.bytes >= over[worst]) & evaluator.can_leave
        if array is self.codes:
            others[place] = False
        for j in np.flatnonzero(others).tolist() if over[worst] > 0 else ():
            for way in self._ways[1:]:
                if self._may(j, way) and self._take(self.codes, j, way):
                    return
            if self._is_done():
                break
        array[place] = old

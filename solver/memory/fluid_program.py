"""A linear relaxation of the memory planner in which tensors flow: the bound of every decision's time.

The variables o (offload) and r (recompute) of each tensor lie between 0 and 1, and so does x for each
workspace of a step with kernels. The copies are not those of single tensors, but amounts since the training
step began:

- What is copied out grows with time at the speed of the link, and never exceeds the offloaded bytes that
  steps have written.
- Offloaded bytes that no forward step uses any more linger until they are copied out.
- What is copied in also grows with time, never exceeds what is copied out, and covers the bytes that have
  been needed so far. What exceeds these takes memory early.

The amounts are variables at some steps only, the marks. Between two marks pass the times of the steps between
them and a pause, which ends when the copies have gone as far as memory and needs demand. Memory is counted at
the marks. All of this allows more than a device does, so that no decision takes less time. For the same
reason a replay takes the time of its kernels' fastest configurations and the workspace of the smallest ones.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ..highs import make_solver
from ..workspace.configuration import Costed
from .program import Amount, Program, Terms, minus
from .simulation import KEEP, OFFLOAD, RECOMPUTE, Codes, Integers, Simulator
from .training import Replay

BYTES = 1e4  # HiGHS's tolerances are absolute, so the memory counts as this many
SLACK = 1e-6  # the part of the bound that the solver's tolerances may hide
MARKS = 100  # marks that divide the copied bytes evenly, besides those at which memory may be short


class FluidProgram:
    """The program, and its solution after `solve`, in which a dive fixes variables.

    Args:
        simulator: the training step.
        memory: the most bytes at any time; None to find the least memory, with the smallest configurations
            and copies that take no time.
        bandwidth: a factor for the link's bandwidth. Not 1 gives other answers, but not a bound.
        offload, recompute: False to forbid it.
        is_whole: True to take and leave whole tensors and configurations, which makes the program integer.
    """

    def __init__(
        self,
        simulator: Simulator,
        memory: int | None,
        *,
        bandwidth: float = 1.0,
        offload: bool = True,
        recompute: bool = True,
        is_whole: bool = False,
    ) -> None:
        work = simulator.work
        self._simulator, self._memory = simulator, memory or 0
        self._program = Program("fluid")
        self._add = self._program.add
        number = self._program.number
        self._make_part = self._program.binary if is_whole else partial(number, most=1.0)
        self._bytes = BYTES / max(memory or int(simulator.kept.max(initial=0)), 1)
        smallest, fastest = work.settle(work.least_workspace), work.settle(work.fastest)
        self._unit = max(math.fsum(step.time_ms for step in smallest.steps), 1e-9) / 1e3
        self._rate_out, self._rate_in = (
            bandwidth * speed / 1e3 * self._unit * self._bytes
            for speed in (work.link.out_bandwidth, work.link.in_bandwidth)
        )
        self._replays: dict[int, Replay] = {}
        self._offloaded: dict[int, Any] = {}
        self._recomputed: dict[int, Any] = {}
        for i in map(int, np.flatnonzero(simulator.can_leave)):
            small, fast = smallest.tensors[i].replay, fastest.tensors[i].replay
            if offload:
                self._offloaded[i] = self._make_part()
            if recompute and small and fast:
                self._recomputed[i] = self._make_part()
                self._replays[i] = replace(small, time_ms=fast.time_ms)
            if i in self._offloaded and i in self._recomputed:
                self._add([(self._offloaded[i], 1), (self._recomputed[i], 1)], "<=", 1)
        self._work_terms: list[Terms] = [[] for _ in work.steps]
        self._work_ms = [step.time_ms for step in work.steps]
        self._workspace: list[Any] = [None] * len(work.steps)
        # The bytes of workspace of each step, at least and at most.
        self._least = np.array([step.workspace for step in work.steps], dtype=np.int64)
        self._most = self._least.copy()
        self._add_kernels()
        self._add_replays()
        self._early = self._add_early_returns()
        self._peak = number() if memory is None else None
        self._objective: Terms = []
        self._add_marks(sorted(self._choose_marks()))
        self._model: Any = None

    def solve(self, nodes: int | None = None, **options: Any) -> float:
        """Solve the program. Return the least milliseconds of all decisions, or infinity if there is none."""
        binaries = [*self._offloaded.values(), *self._recomputed.values()]  # some are in no constraint
        known = [(variable, 0.0) for variable in binaries]
        objective = self._objective if self._peak is None else [(self._peak, 1.0)]
        self._program.minimise([*objective, *known], make_solver(nodes, **options))
        self._model = self._program.problem.solverModel
        self._model.setOptionValue("presolve", "off")  # a later solution begins at the last one
        return self._bound() * (1 - SLACK)

    def solve_whole(self, faster_than: float) -> float:
        """Solve an integer program, without answers that are slower. Return the least milliseconds of all."""
        bound = self.solve(mip_rel_gap=0, mip_abs_gap=0, objective_bound=faster_than / self._unit)
        return min(bound, faster_than)  # HiGHS does not know a bound above it

    def choose(self) -> Codes | None:
        """Return the choices of the solution, or None if there is none."""
        if not self._program.is_solved:
            return None
        codes = np.full(len(self._simulator.bytes), KEEP, dtype=np.int8)
        for i, way, value in self.values():
            if value > 0.5:
                codes[i] = way
        return codes

    def fix(self, tensor: int, way: int, least: float, most: float) -> None:
        """Bound the variable of a tensor and a way to leave."""
        variables = self._offloaded if way == OFFLOAD else self._recomputed
        self._model.changeColBounds(variables[tensor].index, least, most)

    def solve_again(self) -> float:
        """Solve the program with other bounds of its variables."""
        self._model.run()
        return self._bound()

    def values(self) -> list[tuple[int, int, float]]:
        """Return (tensor, way, value) for each variable that may be fixed."""
        columns = self._model.getSolution().col_value
        return [
            (i, way, columns[variable.index])
            for way, variables in ((OFFLOAD, self._offloaded), (RECOMPUTE, self._recomputed))
            for i, variable in variables.items()
        ]

    def _bound(self) -> float:
        status = self._model.getModelStatus()
        if status != type(status).kOptimal:
            return math.inf
        return float(self._model.getInfo().objective_function_value) * self._unit

    def _add_kernels(self) -> None:
        """Add the workspace of each step with kernels, within which each kernel runs as fast as possible."""
        work, number = self._simulator.work, self._program.number
        of_step: dict[int, list[int]] = {}
        for k, kernel in enumerate(work.kernels):
            of_step.setdefault(kernel.step, []).append(k)
        away = np.where(self._leaving(), np.int8(OFFLOAD), np.int8(KEEP))
        free = self._memory - self._simulator.held(away)
        for step, kernels in of_step.items():
            options = [work.kernels[k].configurations for k in kernels]
            least = max(int(self._least[step]), *(choices[0].workspace for choices in options))
            sizes = sorted(
                {c.workspace for choices in options for c in choices if least < c.workspace <= free[step]}
                | {least}
            )
            if self._simulator.kept[step] + sizes[-1] <= self._memory:
                sizes = sizes[-1:]  # no decision needs a smaller one
            times = [
                sum(choices[_index_within(choices, size)].time_ms for choices in options) for size in sizes
            ]
            self._least[step], self._most[step] = sizes[0], sizes[-1]
            if len(sizes) == 1:
                self._work_ms[step] += times[0]
                continue
            chosen = [self._make_part() for _ in sizes]
            self._add([(x, 1) for x in chosen], "==", 1)
            self._work_terms[step] += [(x, ms / self._unit) for x, ms in zip(chosen, times, strict=True)]
            self._workspace[step] = number()
            needed = [(x, -size * self._bytes) for x, size in zip(chosen, sizes, strict=True)]
            self._add([(self._workspace[step], 1), *needed], ">=", 0)

    def _leaving(self) -> Any:
        can = np.zeros(len(self._simulator.bytes), dtype=bool)
        can[[*self._offloaded, *self._recomputed]] = True
        return can

    def _add_replays(self) -> None:
        for i, replay in self._replays.items():
            step, r = int(self._simulator.needs[i]), self._recomputed[i]
            self._work_terms[step].append((r, replay.time_ms / self._unit))
            if replay.workspace > self._least[step]:
                if self._workspace[step] is None:
                    self._workspace[step] = self._program.number(float(self._least[step]) * self._bytes)
                self._add([(self._workspace[step], 1), (r, -replay.workspace * self._bytes)], ">=", 0)
                self._most[step] = max(self._most[step], replay.workspace)

    def _add_early_returns(self) -> dict[int, dict[int, Any]]:
        """Return variables for the sources of replays, for each step that needs one before its own use."""
        early: dict[int, dict[int, Any]] = {}
        for i in sorted(self._replays, key=lambda i: int(self._simulator.needs[i])):
            step = int(self._simulator.needs[i])
            for j in self._replays[i].sources:
                if j in self._recomputed:
                    self._add([(self._recomputed[i], 1), (self._recomputed[j], 1)], "<=", 1)
                if j in self._offloaded and step < self._simulator.needs[j]:
                    returns = early.setdefault(j, {})
                    before = next(reversed(returns.values()), None)
                    if step not in returns:
                        returns[step] = self._program.number(most=1.0)
                        if before is not None:  # no source leaves again
                            self._add([(returns[step], 1), (before, -1)], ">=", 0)
                    both = [(self._recomputed[i], -1), (self._offloaded[j], -1)]
                    self._add([(returns[step], 1), *both], ">=", -1)
        return early

    def _add_marks(self, marks: Sequence[int]) -> None:
        """Add memory and copies at the marks, and the time between them."""
        number = self._program.number
        steps = len(self._work_ms)
        away, released, written, needed, returned = (Amount(self._program) for _ in range(5))
        changes = self._list_changes(away, released, written, needed, returned)
        out = back = None
        begin = noted = 0
        for mark in marks:
            for step in range(noted, mark + 1):
                for amount, variable, size in changes[step]:
                    amount.grow(variable, size)
            elapsed = self._add_elapsed(begin, mark)
            begin, noted = mark, mark + 1
            memory: Terms = [(variable, -factor) for variable, factor in away.now()]
            if self._peak is not None:
                memory.append((self._peak, -1))
            if self._workspace[mark] is not None:
                memory.append((self._workspace[mark], 1))
            if self._offloaded:
                pause = number()
                self._objective.append((pause, 1.0))
                time = (elapsed, pause)
                out = self._add_copied(out, time, self._rate_out)
                self._add([(out, 1), *minus(written.now())], "<=", 0)
                lingering = number()
                self._add([(lingering, 1), (out, 1), *minus(released.now())], ">=", 0)
                back = self._add_copied(back, time, self._rate_in)
                self._add([(back, 1), *minus(needed.now())], ">=", 0)
                self._add([(back, 1), (out, -1)], "<=", 0)
                memory += [(lingering, 1), (back, 1), *minus(returned.now())]
            fixed = float(self._simulator.kept[mark])
            if self._workspace[mark] is None:
                fixed += float(self._least[mark])
            if memory:
                self._add(memory, "<=", (self._memory * (1 + 1e-9) - fixed) * self._bytes)
        self._add_elapsed(begin, steps)
        host = self._simulator.work.host_memory
        if host is not None and self._offloaded:
            sizes = self._simulator.bytes
            terms = [(o, float(sizes[i]) * self._bytes) for i, o in self._offloaded.items()]
            self._add(terms, "<=", host * self._bytes)

    def _add_elapsed(self, begin: int, end: int) -> Any:
        """Return the time of the steps from one to before another."""
        elapsed = self._program.number()
        terms = [
            (variable, -factor) for step in range(begin, end) for variable, factor in self._work_terms[step]
        ]
        self._add([(elapsed, 1), *terms], "==", math.fsum(self._work_ms[begin:end]) / self._unit)
        self._objective.append((elapsed, 1.0))
        return elapsed

    def _add_copied(self, before: Any, time: tuple[Any, Any], rate: float) -> Any:
        """Return an amount that grows no faster than the link copies."""
        copied = self._program.number()
        earlier = [] if before is None else [(before, -1.0)]
        self._add([(copied, 1), *earlier, *((passed, -rate) for passed in time)], "<=", 0)
        if before is not None:
            self._add([(copied, 1), (before, -1)], ">=", 0)
        return copied

    def _list_changes(
        self, away: Amount, released: Amount, written: Amount, needed: Amount, returned: Amount
    ) -> list[list[tuple[Amount, Any, float]]]:
        """Return what changes the amounts at each step."""
        simulator = self._simulator
        changes: list[list[tuple[Amount, Any, float]]] = [[] for _ in range(simulator.steps + 1)]
        for way, variables in ((OFFLOAD, self._offloaded), (RECOMPUTE, self._recomputed)):
            for i, variable in variables.items():
                size = float(simulator.bytes[i]) * self._bytes
                gone, need = int(simulator.freed_from[i]), int(simulator.needs[i])
                changes[gone].append((away, variable, size))
                changes[need].append((away, variable, -size))
                if way == RECOMPUTE:
                    continue
                changes[gone].append((released, variable, size))
                changes[simulator.work.tensors[i].produced_at + 1].append((written, variable, size))
                changes[need].append((returned, variable, size))
                before = None
                for step, returns in (*self._early.get(i, {}).items(), (need, variable)):
                    changes[step].append((needed, returns, size))
                    if before is not None:
                        changes[step].append((needed, before, -size))
                    before = returns
        return changes

    def _choose_marks(self) -> set[int]:
        """Return the steps at which memory may be short, and steps that divide the copied bytes evenly.

        Between two steps at which tensors leave or return, only the step with the most bytes counts, and
        those that exceed it with their largest workspace.
        """
        simulator, steps = self._simulator, len(self._work_ms)
        managed = np.flatnonzero(self._leaving())
        cuts = {*simulator.freed_from[managed].tolist(), *simulator.needs[managed].tolist(), steps}
        cuts.update(step for returns in self._early.values() for step in returns)
        least, most = self._simulator.kept + self._least, self._simulator.kept + self._most
        marks: set[int] = set()
        begin = 0
        for end in sorted(cuts):
            if end > begin:
                largest = begin + int(least[begin:end].argmax())
                short = range(begin, end)
                marks.update(
                    s for s in short if most[s] > self._memory and (s == largest or most[s] > least[largest])
                )
                begin = end
        if self._offloaded:
            copied = np.zeros(steps + 1, dtype=np.int64)
            for i in self._offloaded:
                copied[simulator.work.tensors[i].produced_at + 1] += simulator.bytes[i]
                copied[simulator.needs[i]] += simulator.bytes[i]
            marks |= _divide_evenly(copied[1:steps], marks)
        return marks


def _divide_evenly(amounts: Integers, marks: set[int]) -> set[int]:
    """Return steps between which about as many bytes are copied, at most MARKS for each direction."""
    part, since = int(amounts.sum()) / 2 / MARKS, 0
    added: set[int] = set()
    for step, amount in enumerate(amounts.tolist(), 1):
        since += amount
        if step in marks:
            since = 0
        elif since > part:
            added.add(step)
            since = 0
    return added


def _index_within(configurations: Sequence[Costed], size: int) -> int:
    """Return the index of the fastest configuration within a workspace."""
    return bisect_right(configurations, size, key=lambda choice: choice.workspace) - 1

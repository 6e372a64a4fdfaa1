"""The search for a fast decision: dives, then changes that make the best of them faster.

It ends by counts and by the distance to the bound, so that equal training steps get equal decisions on every
machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from ..workspace.configuration import TIE
from .descent import Descent, TimedDecision
from .fluid_program import FluidProgram
from .greedy import choose_cheapest
from .simulation import KEEP, WINDOW, Codes, Simulator

GAP = 1e-3  # a decision as near to the bound ends the search
NEAR = 5e-3  # and a start as near ends the dives
EVALUATIONS = 20_000
SIMULATIONS = 3000
SIMULATED_STEPS = 700_000  # the sum over all simulations, for large networks
IMPROVED = 3  # starts that are improved, unless they are FAR slower than the best one
FAR = 1.3
SMALL = 200  # with as many steps at most, more dives are cheap
PROGRAM_STEPS = 10_000  # the sum over all programs, for large networks; there are FEW at least
FEW = 3
# The factors of bandwidth and memory of the programs; without bandwidth, nothing is offloaded.
FACTORS = ((1.0, 1.0), (1.0, 0.97), (0.0, 1.0), (0.7, 1.0), (0.4, 1.0))
MORE_FACTORS = ((1.0, 0.93), (0.7, 0.97), (0.4, 0.93), (0.7, 0.9))

ROUNDS = 14  # roundings of a dive
PART = 0.25  # a round rounds up this part of the fractions, the largest first
TINY = 1e-6


class Search:
    """A search for the fastest decision within a memory.

    Args:
        simulator: the training step.
        memory: the most bytes at any time.
        smallest: starts, of which at least the first fits with the least workspaces.
        offload, recompute: False to forbid it.

    Attributes:
        bound_ms: the milliseconds that every decision takes at least.
        best: the fastest decision so far.
    """

    def __init__(
        self,
        simulator: Simulator,
        memory: int,
        smallest: Sequence[Codes],
        *,
        offload: bool,
        recompute: bool,
    ) -> None:
        self._simulator, self._memory = simulator, memory
        self._offload, self._recompute = offload, recompute
        work = simulator.work
        self.bound_ms = math.fsum(step.time_ms for step in work.settle(work.fastest).steps)
        self._starts: list[TimedDecision] = []
        self._seen: set[bytes] = set()
        for codes in smallest:
            self._start(codes)
        self.best = self._starts[0]

    @property
    def stages(self) -> int:
        """The most stages of `run`."""
        return len(self._variants()) + IMPROVED

    def run(self) -> Iterator[None]:
        """Search, and yield after each stage."""
        for bandwidth, memory in self._variants():
            program = FluidProgram(
                self._simulator,
                int(self._memory * memory),
                bandwidth=bandwidth or 1.0,
                offload=self._offload and bandwidth > 0,
                recompute=self._recompute,
            )
            is_bound = (bandwidth, memory) == (1.0, 1.0)
            self._dive(program, is_bound=is_bound, offload=self._offload and bandwidth > 0)
            yield
            if self.best.time_ms <= self.bound_ms * (1 + NEAR):
                break
        yield from self._improve()

    def solve(self) -> None:
        """Solve the integer program, and improve its choices."""
        program = FluidProgram(
            self._simulator, self._memory, offload=self._offload, recompute=self._recompute, is_whole=True
        )
        self.bound_ms = max(self.bound_ms, program.solve_whole(self.best.time_ms))
        codes = program.choose()
        if codes is not None and (fitting := self._fit(codes, self._offload)) is not None:
            start = self._time(fitting)
            if start.time_ms <= FAR * self.best.time_ms:
                self._descend(start, EVALUATIONS, self._most_simulations)

    def keep_more(self) -> None:
        """Keep each tensor that need not leave, the largest first, because hidden copies cost nothing."""
        best, sizes = self.best, self._simulator.bytes
        gone = np.flatnonzero((best.codes != KEEP) & (sizes > 0))
        for i in gone[np.argsort(-sizes[gone], kind="stable")][: self._most_simulations // 4]:
            codes = best.codes.copy()
            codes[i] = KEEP
            limit = best.time_ms * (1 + TIE)
            time_ms = self._simulator.time_ms(
                codes, best.configurations, self._memory, best.window, faster_than=limit
            )
            if time_ms < limit:
                best = TimedDecision(min(time_ms, best.time_ms), codes, best.configurations, best.window)
        self.best = best

    @property
    def _most_simulations(self) -> int:
        return min(SIMULATIONS, SIMULATED_STEPS // max(self._simulator.steps, 1))

    def _variants(self) -> list[tuple[float, float]]:
        """Return the factors of bandwidth and memory of each program."""
        variants = [*FACTORS, *(MORE_FACTORS if self._simulator.steps <= SMALL else ())]
        if not self._offload:  # the bandwidth does not matter
            variants = [each for each in variants if each[0] == 1.0]
        if not self._recompute:
            variants = [each for each in variants if each[0] > 0]
        return variants[: max(FEW, PROGRAM_STEPS // max(self._simulator.steps, 1))]

    def _dive(self, program: FluidProgram, *, is_bound: bool, offload: bool) -> None:
        bound_ms = program.solve()
        if bound_ms == math.inf:
            return
        if is_bound:
            self.bound_ms = max(self.bound_ms, bound_ms)
        codes = _round(program)
        if codes is None:
            return
        for means in dict.fromkeys((offload, self._offload)):
            # The answer may not fit, because the program frees parts of tensors, so more of them must leave.
            if (fitting := self._fit(codes, means)) is not None:
                self._start(fitting)
                return

    def _fit(self, codes: Codes, offload: bool) -> Codes | None:
        """Return choices with which more tensors leave until the training step fits, or None."""
        return choose_cheapest(
            self._simulator, self._memory, codes, offload=offload, recompute=self._recompute
        )

    def _start(self, codes: Codes) -> None:
        """Add a start, with the rules of copies under which it is faster."""
        if codes.tobytes() in self._seen:
            return
        self._seen.add(codes.tobytes())
        self._starts.append(self._time(codes))
        self._starts.sort(key=lambda each: each.time_ms)  # stable: the first of equals wins
        self.best = self._starts[0]

    def _time(self, codes: Codes) -> TimedDecision:
        """Return choices with the fastest configurations that fit, and with the window that is faster."""
        configurations = self._simulator.fit(codes, self._memory)
        timed = [
            TimedDecision(
                self._simulator.time_ms(codes, configurations, self._memory, window),
                codes,
                configurations,
                window,
            )
            for window in ((None, WINDOW) if self._offload else (WINDOW,))
        ]
        return min(timed, key=lambda each: each.time_ms)

    def _improve(self) -> Iterator[None]:
        """Improve the best starts, each with a half of what is left of the counts."""
        starts = [each for each in self._starts[:IMPROVED] if each.time_ms <= FAR * self._starts[0].time_ms]
        evaluations, simulations = EVALUATIONS, self._most_simulations
        for number, start in enumerate(starts, 1):
            if self.best.time_ms <= self.bound_ms * (1 + GAP):
                break
            share = 1 if number == IMPROVED else 2
            used = self._descend(start, evaluations // share, simulations // share)
            evaluations, simulations = evaluations - used[0], simulations - used[1]
            yield

    def _descend(self, start: TimedDecision, evaluations: int, simulations: int) -> tuple[int, int]:
        """Improve a start. Return how many evaluations and simulations this took."""
        simulator = self._simulator
        before = simulator.evaluations, simulator.simulations
        descent = Descent(
            simulator, self._memory, start, offload=self._offload, recompute=self._recompute,
            target_ms=self.bound_ms * (1 + GAP), evaluations=evaluations, simulations=simulations,
        )  # fmt: skip
        descent.run()
        if descent.best.time_ms < self.best.time_ms * (1 - TIE):
            self.best = descent.best
        return simulator.evaluations - before[0], simulator.simulations - before[1]


def _round(program: FluidProgram) -> Codes | None:
    """Return choices from a program that has been solved, or None if rounding leads to none.

    The fractions of its solution are rounded, some at a time, and the program is solved again each time, so
    that the other variables adapt. Programs with less memory or slower links lead to other decisions, because
    the program expects more of the copies than a device does.
    """
    fixed: set[tuple[int, int]] = set()
    part = PART
    for _ in range(ROUNDS):
        free = [(value, i, way) for i, way, value in program.values() if (i, way) not in fixed]
        fractions = sorted(
            ((value, i, way) for value, i, way in free if TINY < value < 1 - TINY),
            key=lambda each: (-each[0], each[2], each[1]),
        )
        if not fractions:
            break
        most = max(1, int(part * len(fractions)), sum(value > 0.9 for value, _, _ in fractions))
        rounded = [each for each in fractions[:most] if each[0] >= 0.5] or fractions[:1]
        whole = [each for each in free if each[0] >= 1 - TINY]
        for _, i, way in (*whole, *rounded):
            program.fix(i, way, 1.0, 1.0)
            fixed.add((i, way))
        if math.isfinite(program.solve_again()):
            continue
        for _, i, way in rounded:  # too many at once, so fewer of them
            program.fix(i, way, 0.0, 1.0)
            fixed.discard((i, way))
        if len(rounded) > 1:
            part = 0.0
        else:
            _, i, way = rounded[0]
            program.fix(i, way, 0.0, 0.0)
            fixed.add((i, way))
        if not math.isfinite(program.solve_again()):
            return None
    return program.choose()

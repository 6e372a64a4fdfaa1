"""The second-best algorithm, run beside a program's calls, to find a measurement that does not hold.

A time that is too high hides an algorithm that would be faster, and the calls of the chosen algorithm do not
show it. So after one of 128 calls a slice of the mini-batch also runs by the fastest algorithm that was not
chosen. It reads the inputs of the call and writes to scratch memory, so the program gets the same bits.
"""

import math
from collections import deque
from collections.abc import Iterable

from mucudnn._native import LONG_RUN_MS, Division, Engine, EngineError, RunTime, estimate
from mucudnn.arrays.user_cache import user_cache
from mucudnn.costs.checks import uses_to_next_check
from mucudnn.costs.records import STOCK, Measurement
from mucudnn.errors import MucudnnError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import machine_of
from mucudnn.measuring.buffers import allocate_workspace, extent
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

CALLS = 128  # the fewest calls from one run to the next
RUNS = 3  # timed runs of an algorithm before its time is compared
_WITHIN_REACH = 2  # algorithms that are this many times slower than the choice do not run
TOO_LOW = 0.86  # the time of a run over the cached time; below it, the cached time does not hold


def list_others(rows: Iterable[Measurement], chosen: Configuration) -> list[MicroConfiguration]:
    """Return the best measurement of each algorithm that the choice does not use, the fastest first.

    Measurements that are too slow to be in doubt are missing, and so are those of STOCK.
    """
    used = {(part.micro_batch, part.algorithm) for part in chosen.parts}
    most_ms = _WITHIN_REACH * chosen.time_ms / sum(part.micro_batch for part in chosen.parts)
    best: dict[str, MicroConfiguration] = {}
    for row in rows:
        part = row.part()
        if part is None or part.algorithm == STOCK or (part.micro_batch, part.algorithm) in used:
            continue
        other = best.get(part.algorithm)
        if _sample_ms(part) <= min(most_ms, math.inf if other is None else _sample_ms(other)):
            best[part.algorithm] = part
    return sorted(best.values(), key=_sample_ms)


def _sample_ms(part: MicroConfiguration) -> float:
    return part.time_ms / part.micro_batch


class SecondBest:
    """The algorithms that were not chosen for a kernel on a CPU, which run one after another.

    Their workspace and their result together take at most `limit` bytes; None is unlimited.
    """

    def __init__(
        self,
        engine: Engine,
        kernel: Kernel,
        call_ms: float,
        others: Iterable[MicroConfiguration],
        limit: int | None,
    ) -> None:
        self._engine, self._kernel, self._call_ms, self._limit = engine, kernel, call_ms, limit
        self._others = deque(others)  # the first one runs next
        self._division: Division | None = None  # the first one, made ready
        self._times: list[RunTime] = []
        self._left: float = CALLS

    def follow(self, x: int, w: int, y: int) -> None:
        """Follow a call on tensors at these addresses, whose result is complete."""
        self._left -= 1
        if self._left > 0:
            return
        self._left = math.inf  # another thread must not begin
        try:
            self._run(x, w, y)
        except (EngineError, MucudnnError, MemoryError, ValueError):
            self._others.popleft()
            self._begin_next()
        self._left = self._interval()

    def _interval(self) -> float:
        """Return the calls until the next run, which are infinite if no algorithm is left."""
        if not self._others:
            return math.inf
        ms = self._others[0].time_ms * self._runs
        return uses_to_next_check(ms, self._call_ms, CALLS)

    @property
    def _runs(self) -> int:
        """The runs of the next algorithm after a call, the last of which is timed.

        Memory that was never touched and cold caches slow down a short first run.
        """
        return 1 if self._others[0].time_ms >= LONG_RUN_MS else 2

    def _run(self, x: int, w: int, y: int) -> None:
        other = self._others[0]
        kernel = self._kernel.at(other.micro_batch)
        if self._division is None:
            self._division = self._engine.prepare(kernel, ((other.micro_batch, other.algorithm),))
        sizes = extent(kernel.problem)
        result = {"forward": "y", "backward_data": "x", "backward_filter": "w"}[kernel.pass_]
        needed = self._division.workspace + getattr(sizes, result)
        if self._limit is not None and needed > self._limit:
            raise MemoryError
        memory = {
            name: self._engine.allocate(size) if name == result else self._engine.borrow(address, size)
            for name, address, size in (("x", x, sizes.x), ("w", w, sizes.w), ("y", y, sizes.y))
        }
        workspace = allocate_workspace(self._engine, self._division.workspace)
        for _ in range(self._runs):
            before = self._engine.read_clocks()
            self._division.execute(memory["x"], memory["w"], memory["y"], workspace)
            time = before.until(self._engine.read_clocks(), 1)
        self._times.append(time)
        if len(self._times) == RUNS:
            self._compare(other)
            self._others.rotate(-1)
            self._begin_next()

    def _begin_next(self) -> None:
        self._division, self._times = None, []

    def _compare(self, other: MicroConfiguration) -> None:
        """Doubt the cached time if the runs contradict it, unless they were disturbed."""
        timing = estimate(self._times, other.algorithm)
        if timing.is_busy and self._times[0].threads > 1:
            return
        if timing.time_ms < TOO_LOW * other.time_ms:
            with user_cache(Listener()) as cache:
                cache.doubt(machine_of(self._engine), self._kernel, other, timing.time_ms)

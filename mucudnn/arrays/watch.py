"""The watch over a prepared division: a few calls are timed, to find measurements that do not hold.

A cached time may be wrong because other work disturbed the measurement in a way that no clock shows. Eight
timed calls find a time that is 1.3 times too high in 99.9 % of the cases, and too low in 98 %. The cache then
marks the measurement as disturbed, so that a later process makes it again.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress

from mucudnn._native import Engine, RunTime, estimate
from mucudnn.arrays.second_best import TOO_LOW, SecondBest, list_others
from mucudnn.arrays.user_cache import user_cache
from mucudnn.costs.records import Measurement
from mucudnn.errors import MucudnnError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import machine_of
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration

SAMPLES = 8
# The milliseconds that timing adds to a call, and the largest share of the calls' time that it may take.
_SAMPLE_MS, _MOST_COST = 0.01, 0.005
_LEAST_MS = 0.5  # in shorter calls the caches decide, whose contents no clock shows
# The times of calls over the predicted time. Between other layers a call takes up to 1.04 times as long as
# among equal calls, and FFT 1.55 times, because the caches hold other data.
_TOO_HIGH, _TOO_HIGH_FFT = 1.3, 2.0
_PAUSE = 64  # intervals between two checks, each of SAMPLES calls


class Watch:
    """The timed calls of a division on a CPU, and runs of the algorithms that were not chosen."""

    @classmethod
    def over(
        cls,
        engine: Engine,
        kernel: Kernel,
        configuration: Configuration | ChannelGroups,
        rows: Iterable[Measurement] = (),
        limit: int | None = None,
    ) -> "Watch | None":
        """Return a watch over a division of the mini-batch on a CPU; None if its calls are too short.

        `rows` are the kernel's measurements. What runs beside the calls takes at most `limit` bytes of
        scratch memory; None is unlimited.
        """
        if engine.kind != "host" or not isinstance(configuration, Configuration):
            return None
        if configuration.time_ms < _LEAST_MS:
            return None
        others = list_others(rows, configuration)
        second = SecondBest(engine, kernel, configuration.time_ms, others, limit) if others else None
        return cls(engine, kernel, configuration, second)

    def __init__(
        self, engine: Engine, kernel: Kernel, configuration: Configuration, second: SecondBest | None
    ) -> None:
        self._engine, self._kernel, self._configuration = engine, kernel, configuration
        self._second = second
        self._interval = max(1, math.ceil(_SAMPLE_MS / (_MOST_COST * configuration.time_ms)))
        self._times: list[RunTime] = []
        self._left = self._interval  # calls until one is timed

    def run(self, run: Callable[[], None], x: int, w: int, y: int) -> None:
        """Run the division on tensors at these addresses, and time some runs.

        Enough times are compared with the prediction.
        """
        self._run(run)
        if self._second is not None:
            self._second.follow(x, w, y)

    def _run(self, run: Callable[[], None]) -> None:
        self._left -= 1
        if self._left > 0:
            run()
            return
        before = self._engine.read_clocks()
        run()
        self._times.append(before.until(self._engine.read_clocks(), 1))
        self._left = self._interval
        if len(self._times) >= SAMPLES:
            times, self._times = self._times, []
            self._left = self._interval * _PAUSE
            self._compare(times)

    def _compare(self, times: list[RunTime]) -> None:
        timing = estimate(times, "")
        if timing.is_busy and times[0].threads > 1:
            return
        ratio = timing.time_ms / self._configuration.time_ms
        is_fft = any("FFT" in part.algorithm for part in self._configuration.parts)
        if TOO_LOW <= ratio <= (_TOO_HIGH_FFT if is_fft else _TOO_HIGH):
            return
        with suppress(MucudnnError), user_cache(Listener()) as cache:
            for part in dict.fromkeys(self._configuration.parts):
                cache.doubt(machine_of(self._engine), self._kernel, part, part.time_ms * ratio)

"""The judge of whole steps: it compares a model's choices with PyTorch's own convolutions.

The sum of kernels does not tell: a neighbour may have to convert a layout, and caches hold other data. So
when all calls of a converted model are decided, its next steps run in different ways:

- the choices,
- PyTorch's own convolutions,
- a mixture: the choices in calls where they save much by their measurements, PyTorch's own in the others.

The fastest way stays, but PyTorch's own convolutions stay where the steps leave doubt. These steps are real
ones of the program, so nothing is measured twice. A way that is far behind gets few of them.

Processors slow down while they get warm, and other programs come and go. So a step is compared with the steps
of the other ways that ran next to it, and the order turns around each time: CC SS MM, MM SS CC, and so on.

The times are kept, so that a later process with the same model does not compare again.

A step lasts from one call of the model's first convolution to the next. Each shape of its input has a
verdict of its own. Programs that ask PyTorch for deterministic algorithms, and models that follow a plan,
have no judge.
"""

import itertools
import logging
import math
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Protocol

import torch
from torch import Tensor

from mucudnn.arrays.recent import Recent
from mucudnn.forks import close_in_child, no_fork
from mucudnn.torch.choosing.calls import CLEAR_GAIN
from mucudnn.torch.operators.passes import is_captured

# Ways that differ little are compared in _ENOUGH steps of each, and in more if these take less than _ENOUGH_S
# seconds together, because short steps vary more: in up to _ENOUGH_SHORT. If these do not tell which way is
# faster, as many again are run.
_ENOUGH, _ENOUGH_S, _ENOUGH_SHORT = 7, 3.0, 64
# A comparison ends early if each step of one way took at least so many times as long as its neighbour of the
# other way. The keys are the steps of each way so far: the more there are, the less they must differ.
_CLEAR = {2: 1.5, 3: 1.1, 4: 1.075, 5: 1.06, 6: 1.05}
_FEWEST_WITHOUT_GAIN = 4  # so many steps that all save too little are enough, too
# PyTorch's own convolutions must take so many times as long as the choices or the mixture. Medians of so few
# steps err by as much, and a model shall not get slower by chance.
_LEAST = 1.015
# Steps of equal ways agree by chance, too. These chances are allowed each time that steps are asked: where
# they end a comparison early, and after enough of them.
_CHANCE_EARLY, _CHANCE = 0.01, 0.1
_PATIENCE = 400  # steps after which the choices stay without a verdict
_MOST_CALLS = 4096  # a longer step has no end: the program calls its first convolution no more
_MOST_SHAPES = 512  # verdicts, and as many older ones
_MOST_ASKED = 4  # different steps that begin with the same call, and are looked up
CHOICES, STOCK_WAY, MIXTURE = "choices", "stock", "mixture"  # the ways in which a step runs
_WAYS = (CHOICES, STOCK_WAY, MIXTURE)  # in their turns
_PREFERRED = (STOCK_WAY, MIXTURE, CHOICES)  # among ways that take the same time
_logger = logging.getLogger("mucudnn")


class Times(Protocol):
    """The memory of a judge: the ms of steps by the way they ran."""

    def find(self, calls: Sequence[Hashable]) -> Mapping[str, float]:
        """Return the times of a step with these calls; nothing if nobody measured it."""

    def keep(self, calls: Sequence[Hashable], times: Mapping[str, float]) -> None:
        """Keep the times of a step with these calls."""


@dataclass
class _Trial:
    """The times of the steps whose first call is the same, by the convolutions that they ran."""

    times: dict[tuple[int, ...], dict[str, list[float]]] = field(default_factory=dict)
    left: tuple[str, ...] = _WAYS  # the ways that may be the fastest
    way: str = CHOICES  # the next step runs so
    turn: int = 0  # the steps of this turn so far
    is_forward: bool = True  # True if the turns follow the order of _WAYS, False if backwards
    steps: int = 0
    asked: set[tuple[int, ...]] = field(default_factory=set)  # the steps that were looked up
    verdict: str | None = None
    given: dict[int, bool] = field(default_factory=dict)  # True for modules that the verdict gives to PyTorch

    def restart(self) -> None:
        """Let the next step run with the choices, as the first one did.

        The count of steps goes on, so that a program with ever new calls compares no longer than others.
        """
        self.way, self.turn, self.is_forward = CHOICES, 0, True

    def add(self, modules: tuple[int, ...], took: float) -> dict[str, list[float]]:
        """Add the time of a step in the present way. Return the times of its like, by way."""
        times = self.times.setdefault(modules, {})
        times.setdefault(self.way, []).append(took)
        if all(way in times for way in self.left):
            beaten = _beaten({way: times[way] for way in self.left})
            self.left = tuple(way for way in self.left if way not in beaten)
        # Two steps of each way follow one another: programs that call the first convolution twice in a step
        # see both of its calls in all ways.
        self.turn += 1
        if self.turn == 2 or self.way not in self.left:
            self.turn, self.way = 0, self._next()
        return times

    def _next(self) -> str:
        """Return the way of the next turn. The last one of an order is the first one of the next order."""
        order = _WAYS if self.is_forward else _WAYS[::-1]
        for way in order[order.index(self.way) + 1 :]:
            if way in self.left:
                return way
        self.is_forward = not self.is_forward
        return next(way for way in reversed(order) if way in self.left)


class Judge:
    """The verdicts for one converted model. It costs a call next to nothing once they are there."""

    def __init__(self, times: Times | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._times, self._clock = times, clock
        self.leader: int | None = None  # the module whose call begins a step
        # True if a verdict lets PyTorch's own convolutions run the present step. The leader's call is no part
        # of it: it begins the next one. Each layer reads both values in each call, so they are no functions.
        self.has_given_step = False
        self._trials: Recent[Hashable, _Trial] = Recent(_MOST_SHAPES)
        self._trial: _Trial | None = None  # None if nothing is to be found out in this step
        self._way = CHOICES  # this step runs so
        self._called: list[tuple[int, Hashable]] = []  # modules with their calls
        self._seen: Recent[tuple[int, Hashable], bool] = Recent(_MOST_CALLS)
        self._unclear: Recent[Hashable, bool] = Recent(_MOST_CALLS)  # True for PyTorch's own in a mixture
        self._is_clean, self._since = False, 0.0
        self._gains: set[bool] = set()  # True for a clear gain of a call, False for a little one
        self._thread = 0
        self._lock = threading.Lock()  # held while a thread compares; the others do not wait for it
        with no_fork:
            close_in_child(self)

    def close(self) -> None:
        """Replace the lock in a child of fork(): the thread that held it may not exist there."""
        self._lock = threading.Lock()

    @property
    def verdict(self) -> str | None:
        """The way in which the last step ran if steps like it are decided; None if they are compared."""
        return self._way if self.leader is not None and self._trial is None else None

    def wants_stock(self, module: int, call: Hashable, x: Tensor) -> bool:
        """Return whether PyTorch's own convolution runs this call of a module, for the sake of the step."""
        if self.leader is None:
            self.leader = module
        if module == self.leader or self._trial is not None:
            lock = self._lock
            if lock.acquire(blocking=False):
                try:
                    self._follow(module, call, x)
                finally:
                    lock.release()
            else:
                self._is_clean = False  # another thread runs at the same time
        return self._runs_stock(call)

    def _follow(self, module: int, call: Hashable, x: Tensor) -> None:
        """Note a call of the present step, or let the next step begin with it."""
        if module == self.leader:
            self._end(x)
            self._begin(call, x)
        if self._trial is None:
            return
        if len(self._called) >= _MOST_CALLS:  # the program calls the first module no more
            self.leader = self._trial = None
            return
        self._called.append((module, call))
        if not self._seen[module, call] or threading.get_ident() != self._thread:
            self._seen[module, call] = True
            self._is_clean = False  # the call measures, or another thread runs at the same time

    def has_given_to_stock(self, call: Hashable) -> bool:
        """Return whether a verdict lets PyTorch's own convolution run this call of the present step."""
        return self._trial is None and self._runs_stock(call)

    def tell(self, module: int) -> str:
        """Return words about the steps in which verdicts give a module to PyTorch; none if there are none."""
        given = {trial.given.get(module) for trial in self._trials.everything().values() if trial}
        if True not in given:
            return ""
        return f"PyTorch's own in {'some' if False in given else 'all'} steps"

    def note(self, call: Hashable, gain: float | None) -> None:
        """Hear the share of a call's time that its own choice saves, and that it follows this choice.

        The gain is 0 if the choice is PyTorch's own, and None if the call is not decided yet.
        """
        if gain is None:
            self._is_clean = False
        elif gain:
            is_clear = gain >= CLEAR_GAIN
            self._gains.add(is_clear)
            if not is_clear:
                self._unclear[call] = True

    def _runs_stock(self, call: Hashable) -> bool:
        return self._way == STOCK_WAY or (self._way == MIXTURE and self._unclear[call] is True)

    def _begin(self, call: Hashable, x: Tensor) -> None:
        trial = self._trials[call]
        if trial is None:
            trial = self._trials[call] = _Trial()
        self._way, self._trial = trial.verdict or CHOICES, None
        self.has_given_step = trial.verdict == STOCK_WAY
        if trial.verdict or torch.are_deterministic_algorithms_enabled() or is_captured(x):
            return
        self._trial, self._called, self._way = trial, [], trial.way
        self._is_clean, self._gains, self._thread = True, set(), threading.get_ident()
        self._since = self._clock()

    def _end(self, x: Tensor) -> None:
        trial = self._trial
        if trial is None or not self._called:
            return
        if x.is_cuda and not is_captured(x):
            torch.cuda.synchronize(x.device)
        took = self._clock() - self._since
        modules = tuple(module for module, _ in self._called)
        if self._decide_from_cache(trial, modules):
            return
        if not self._is_clean:
            trial.restart()
            self._trial = None
            return
        trial.steps += 1
        if self._way == CHOICES and not self._gains:  # each choice is PyTorch's own
            trial.verdict = STOCK_WAY
            return
        if trial.steps > _PATIENCE:
            trial.verdict = CHOICES
            return
        # A mixture would be one of the other ways. If the choices were slower before, it was different there.
        if self._way == CHOICES and CHOICES in trial.left and len(self._gains) == 1:
            trial.left = tuple(way for way in trial.left if way != MIXTURE)
        times = trial.add(modules, took)
        if len(trial.left) > 1:
            return
        [verdict] = trial.left
        fastest = times[verdict]
        found = {way: _ratio(own, fastest) * min(fastest) * 1e3 for way, own in times.items()}
        self._rule(trial, verdict, found)
        # If the shortest steps tell otherwise, something disturbed them: a later process compares again.
        shortest = {way: min(own) for way, own in times.items()}
        is_clear = all((_fastest(own) == STOCK_WAY) == (verdict == STOCK_WAY) for own in (shortest, found))
        if self._times is not None and is_clear:
            self._times.keep([call for _, call in self._called], found)

    def _decide_from_cache(self, trial: _Trial, modules: tuple[int, ...]) -> bool:
        """Decide between the ways by times in the cache. Return False if it has none for this step."""
        if self._times is None or modules in trial.asked or len(trial.asked) >= _MOST_ASKED:
            return False
        trial.asked.add(modules)
        found = self._times.find([call for _, call in self._called])
        if not {CHOICES, STOCK_WAY} <= found.keys():
            return False
        known = {way: found[way] for way in _WAYS if way in found}
        self._rule(trial, _fastest(known), known)
        return True

    def _rule(self, trial: _Trial, verdict: str, times: Mapping[str, float]) -> None:
        """Let a way run from now on, and tell the ms of all ways."""
        self._way = trial.verdict = verdict
        trial.given = {module: self._runs_stock(call) for module, call in self._called}
        trial.times.clear()
        little = sum(self._unclear[call] is True for _, call in self._called)
        texts = {
            CHOICES: "with the choices",
            STOCK_WAY: "with PyTorch's own convolutions",
            MIXTURE: f"with PyTorch's own in {little} calls where the choices save little",
        }
        names = {CHOICES: "the choices", STOCK_WAY: "PyTorch's own", MIXTURE: "the mixture"}
        told = ", ".join(f"{times[way]:.4g} ms {texts[way]}" for way in _WAYS if way in times)
        _logger.info("A step takes %s: %s run", told, names[verdict])


def _fastest(times: Mapping[str, float]) -> str:
    """Return the fastest way, or PyTorch's own if it takes less than _LEAST times as long."""

    def claimed(way: str) -> float:
        return times[way] / (_LEAST if way == STOCK_WAY else 1)

    return min((way for way in _PREFERRED if way in times), key=claimed)


def _beaten(times: Mapping[str, Sequence[float]]) -> set[str]:
    """Return the ways that get no further steps: the times of their steps tell that another way is better.

    PyTorch's own convolutions stay unless a way saves time in more steps than it would by chance (a sign
    test). Between the choices and the mixture the median decides.
    """
    beaten: set[str] = set()
    for preferred, other in itertools.combinations([way for way in _PREFERRED if way in times], 2):
        if not beaten & {preferred, other}:
            is_better = _is_better(times[other], times[preferred], is_safe=preferred == STOCK_WAY)
            if is_better is not None:
                beaten.add(preferred if is_better else other)
    return beaten


def _is_better(other: Sequence[float], preferred: Sequence[float], *, is_safe: bool) -> bool | None:
    """Return whether a way is better than one that is preferred to it; None if more steps must tell.

    `is_safe` says that the preferred way must stay where the steps leave doubt.
    """
    ratios = [own / one for own, one in zip(preferred, other, strict=False)]
    count = len(ratios)
    if count < min(_CLEAR):
        return None
    clear = _CLEAR.get(count, _LEAST)
    few = max(_most_exceptions(count, _CHANCE_EARLY), 0)
    if sum(ratio <= clear for ratio in ratios) <= few:
        return True
    most = _LEAST if count >= _FEWEST_WITHOUT_GAIN else 1 / clear
    if sum(ratio >= most for ratio in ratios) <= few:
        return False
    seconds = min(sum(other), sum(preferred))
    done = max(count / _ENOUGH_SHORT, min(count / _ENOUGH, seconds / _ENOUGH_S))  # 1 if it is enough
    if done < 1:
        return None
    median = statistics.median(ratios)
    if not is_safe or median < _LEAST:
        return median >= _LEAST
    if sum(ratio <= 1 for ratio in ratios) <= _most_exceptions(count, _CHANCE):
        return True
    return False if done >= 2 else None


@cache
def _most_exceptions(count: int, chance: float) -> int:
    """Return how many of `count` steps may contradict that one way is faster; -1 if even none proves nothing.

    Steps of two equal ways contradict it as rarely with at most this chance (a sign test).
    """
    share = itertools.accumulate(math.comb(count, exceptions) / 2**count for exceptions in range(count + 1))
    return sum(1 for _ in itertools.takewhile(lambda found: found <= chance, share)) - 1


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios of steps that ran next to one another."""
    return statistics.median(one / other for one, other in zip(above, below, strict=False))

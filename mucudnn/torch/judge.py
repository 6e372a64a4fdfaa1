"""The judge of whole steps: it compares a model's choices with PyTorch's own convolutions.

The sum of kernels does not tell: a neighbour may have to convert a layout, and caches hold other data. So
when all calls of a converted model are decided, some steps run with the choices and some with PyTorch's own
convolutions. The faster way stays. These steps are real ones of the program, so nothing is measured twice.

The times are kept, so that a later process with the same model does not compare again.

A step lasts from one call of the model's first convolution to the next. Each shape of its input has a
verdict of its own. Programs that ask PyTorch for deterministic algorithms, and models that follow a plan,
have no judge.
"""

import logging
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

_FEWEST, _MOST = 3, 7  # steps of each kind
_CLOSE = 0.1  # two ways that differ by less than this share are compared in _MOST steps
_PATIENCE = 40  # steps after which the choices stay without a verdict
_MOST_CALLS = 4096
_MOST_ASKED = 4  # different steps that begin with the same call, and are looked up
CHOICES, STOCK_WAY = "choices", "stock"  # the ways in which a step runs
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

    times: dict[tuple[int, ...], tuple[list[float], list[float]]] = field(default_factory=dict)
    steps: int = 0
    asked: set[tuple[int, ...]] = field(default_factory=set)  # the steps that were looked up
    stock_wins: bool | None = None


class Judge:
    """The verdicts for one converted model. It costs a call next to nothing once they are there."""

    def __init__(self, times: Times | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self._times, self._clock = times, clock
        self._leader: int | None = None
        self._trials: dict[Hashable, _Trial] = {}
        self._trial: _Trial | None = None  # None if nothing is to be found out in this step
        self._is_stock = False  # True if PyTorch's own convolutions run in this step
        self._called: list[tuple[int, Hashable]] = []  # modules with their calls
        self._seen: set[tuple[int, Hashable]] = set()
        self._is_clean, self._has_choice, self._since = False, False, 0.0
        self._thread = 0

    @property
    def verdict(self) -> str | None:
        """The way in which the last step ran if steps like it are decided; None if they are compared."""
        way = STOCK_WAY if self._is_stock else CHOICES
        return way if self._leader is not None and self._trial is None else None

    def has_given_step(self, module: int) -> bool:
        """Return whether a verdict lets PyTorch's own convolutions run the present step.

        Always return False for the first module of a step, because its call begins the next one.
        """
        return self._is_stock and self._trial is None and module != self._leader

    def wants_stock(self, module: int, call: Hashable, x: Tensor) -> bool:
        """Return whether PyTorch's own convolution runs this call of a module, for the sake of the step."""
        if self._leader is None:
            self._leader = module
        if module == self._leader:
            self._end(x)
            self._begin(call, x)
        if self._trial is not None:
            self._called.append((module, call))
            if (module, call) not in self._seen or threading.get_ident() != self._thread:
                self._seen.add((module, call))
                self._is_clean = False  # the call measures, or another thread runs at the same time
        return self._is_stock

    def note(self, is_stock: bool | None) -> None:
        """Hear how a call runs that follows its own choice; None if it is not decided yet."""
        self._is_clean &= is_stock is not None
        self._has_choice |= is_stock is False

    def _begin(self, call: Hashable, x: Tensor) -> None:
        if len(self._seen) > _MOST_CALLS or len(self._trials) > _MOST_CALLS:  # ever new shapes
            self._seen.clear()
            self._trials.clear()
        trial = self._trials.setdefault(call, _Trial())
        self._is_stock, self._trial = bool(trial.stock_wins), None
        if trial.stock_wins is not None or torch.are_deterministic_algorithms_enabled() or _is_captured(x):
            return
        self._trial, self._called = trial, []
        self._is_clean, self._thread = True, threading.get_ident()
        # Two steps of each kind follow one another: programs that call the first convolution twice in a step
        # see both of its calls with both kinds.
        self._is_stock = trial.steps % 4 >= 2
        self._has_choice = self._is_stock
        self._since = self._clock()

    def _end(self, x: Tensor) -> None:
        trial = self._trial
        if trial is None or not self._called:
            return
        if x.is_cuda and not _is_captured(x):
            torch.cuda.synchronize(x.device)
        took = self._clock() - self._since
        modules = tuple(module for module, _ in self._called)
        if self._decide_from_cache(trial, modules):
            return
        if not self._is_clean:
            trial.steps, self._trial = 0, None
            return
        trial.steps += 1
        if not self._has_choice or trial.steps > _PATIENCE:
            trial.stock_wins = False
            return
        times = trial.times.setdefault(modules, ([], []))
        times[self._is_stock].append(took)
        ours, stock = times
        if min(len(ours), len(stock)) < _FEWEST:
            return
        ratio = min(ours) / min(stock)
        if abs(ratio - 1) < _CLOSE and min(len(ours), len(stock)) < _MOST:
            return
        found = {CHOICES: min(ours) * 1e3, STOCK_WAY: min(stock) * 1e3}
        _rule(trial, found)
        # If the medians tell otherwise, other programs disturbed the steps: a later process compares again.
        is_clear = (statistics.median(ours) >= statistics.median(stock)) == trial.stock_wins
        if self._times is not None and is_clear:
            self._times.keep([call for _, call in self._called], found)

    def _decide_from_cache(self, trial: _Trial, modules: tuple[int, ...]) -> bool:
        """Decide between the two ways by times in the cache. Return False if it has none for this step."""
        if self._times is None or modules in trial.asked or len(trial.asked) >= _MOST_ASKED:
            return False
        trial.asked.add(modules)
        found = self._times.find([call for _, call in self._called])
        if not {CHOICES, STOCK_WAY} <= found.keys():
            return False
        _rule(trial, found)
        return True


def _rule(trial: _Trial, times: Mapping[str, float]) -> None:
    """Let the faster way run from now on."""
    trial.stock_wins = times[STOCK_WAY] <= times[CHOICES]
    _logger.info(
        "A step takes %.4g ms with the choices, %.4g ms with PyTorch's own convolutions: %s run",
        times[CHOICES], times[STOCK_WAY], "PyTorch's own" if trial.stock_wins else "the choices",
    )  # fmt: skip


def _is_captured(x: Tensor) -> bool:
    return x.is_cuda and bool(torch.cuda.is_current_stream_capturing())

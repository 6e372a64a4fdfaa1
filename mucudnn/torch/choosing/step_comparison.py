"""The comparison of whole steps: a model's choices against PyTorch's own convolutions.

The sum of the kernels' times does not show which is faster, because neighbours may have to convert a layout
and caches hold other data. So once all calls in a converted model are decided, its next steps run in
different ways:

- the choices,
- PyTorch's own convolutions,
- a mixture: the choices in calls whose measurements show a clear gain, PyTorch's own in the others.

The fastest way stays, but PyTorch's own convolutions stay when the steps leave doubt. These are steps of the
program itself, so no work is repeated for the comparison, and a way that is far behind gets few of them.

Processors slow down as they get warm, and other programs come and go. The ways are therefore interleaved, in
an order that is reversed each time (CC SS MM, MM SS CC, and so on), and each step is compared with the
neighbouring steps of the other ways.

The times are kept, so that a later process with the same model does not compare again, until `step_check`
says that the result is due to be checked.

A step lasts from one call to the model's first convolution to the next, and each shape of its input has its
own result. Programs that ask PyTorch for deterministic algorithms, and models that follow a plan, do not
compare.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mucudnn._native import ClockReading, RunTime
from mucudnn.arrays.recent import Recent
from mucudnn.forks import close_in_child, no_fork
from mucudnn.torch.choosing.answers import CallKey
from mucudnn.torch.choosing.decision import CLEAR_GAIN
from mucudnn.torch.choosing.faster_way import (
    FEWEST_KEPT,
    clean_pairs,
    fastest,
    relative_times,
    slower_ways,
)
from mucudnn.torch.choosing.step_check import StepCheck, StepTimes, median_ms
from mucudnn.torch.choosing.trials import CHOICES, MIXTURE, STOCK_WAY, Times
from mucudnn.torch.operators import device_times
from mucudnn.torch.operators.passes import is_captured

_PATIENCE = 400  # steps after which the choices stay without a comparison
_MOST_CALLS = 4096  # in a longer step the program has probably stopped calling its first convolution
_MOST_SHAPES = 512  # results, and as many older ones
_MOST_ASKED = 4  # different steps with the same first call that are looked up in the cache
_WAYS = (CHOICES, STOCK_WAY, MIXTURE)
# The order of the ways, which begins again after its end. Each way runs two steps in a row, for programs that
# call the first convolution twice in a step: they then see both of its calls in all ways.
_TURNS = tuple(way for way in (*_WAYS, *reversed(_WAYS)) for _ in range(2))
_logger = logging.getLogger("mucudnn")


@dataclass
class _SimilarSteps:
    """The steps that begin with the same call, and their times by the convolutions that they ran."""

    times: dict[tuple[int, ...], dict[str, list[RunTime]]] = field(default_factory=dict)
    left: tuple[str, ...] = _WAYS  # the ways that may be the fastest
    # The place of the next step in _TURNS. At 0, a step runs with the choices, as the first step ran.
    turn: int = 0
    # All compared steps, so that a program with ever new calls does not compare longer than others.
    count: int = 0
    asked: set[tuple[int, ...]] = field(default_factory=set)  # the steps that were looked up in the cache
    result: str | None = None  # the way that runs from now on
    left_to_pytorch: dict[int, bool] = field(default_factory=dict)  # keys are modules; empty without a result
    check: StepCheck | None = None  # the latest result of a comparison

    @property
    def way(self) -> str:
        """The way of the next step."""
        return _TURNS[self.turn % len(_TURNS)]

    def end(self, otherwise: str | None, step_ms: Times | None = None, *, is_counted: bool = False) -> None:
        """Go on with the result as before its check, in which a step took these ms by way.

        The first comparison has no earlier result, and goes on with `otherwise`.
        """
        self.result = otherwise
        if self.check is not None:
            self.result = self.check.result
            self.times.clear()
            self.check.confirm(step_ms or {}, is_counted=is_counted)

    def add(self, modules: tuple[int, ...], time: RunTime) -> dict[str, list[RunTime]]:
        """Add the time of a step in the current way. Return the times of steps with these modules."""
        times = self.times.setdefault(modules, {})
        times.setdefault(self.way, []).append(time)
        if all(way in times for way in self.left):
            slower = slower_ways({way: times[way] for way in self.left})
            self.left = tuple(way for way in self.left if way not in slower)
        self.turn += 1
        while self.way not in self.left:
            self.turn += 1
        return times


class StepComparison:
    """The comparisons of one converted model's steps, and their results."""

    def __init__(
        self,
        times: StepTimes | None = None,
        clock: Callable[[str], ClockReading] = device_times.read_clocks,
        on_result: Callable[[Times], None] = lambda step_ms: None,
    ) -> None:
        """Begin without steps. `on_result` takes the ms of a compared step by way.

        It takes no times if the step was not compared, because PyTorch runs all of its calls anyway.
        """
        self._times, self._clock, self._on_result = times, clock, on_result
        self.first_layer: int | None = None  # the module whose call begins a step
        # True if a result leaves the present step to PyTorch's own convolutions. A call to the first layer
        # begins the next step.
        self.is_step_left_to_pytorch = False
        self._similar_steps: Recent[CallKey, _SimilarSteps] = Recent(_MOST_SHAPES)  # keys are first calls
        self._compared: _SimilarSteps | None = (
            None  # steps similar to the present one; None if it is not compared
        )
        self._way = CHOICES  # the way of the present step
        self._called: list[tuple[int, CallKey]] = []  # modules and their calls
        self._seen: Recent[tuple[int, CallKey], bool] = Recent(_MOST_CALLS)
        self._unclear: Recent[CallKey, bool] = Recent(_MOST_CALLS)  # True for PyTorch's own in a mixture
        self._is_clean = False
        self._since: ClockReading | None = None  # the beginning of the present step
        self._is_undecided = False  # True if a call of the present step is undecided
        self._gains: set[bool] = set()  # True for a clear gain of a call, False for a small one
        self._thread = 0
        self._lock = threading.Lock()  # held while a thread compares; the others do not wait for it
        with no_fork:
            close_in_child(self)

    def close(self) -> None:
        """Replace the lock in a child of fork(), where the thread that held it may not exist."""
        self._lock = threading.Lock()

    @property
    def result(self) -> str | None:
        """The way of the last step if similar steps are decided; None while they are compared."""
        return self._way if self.first_layer is not None and self._compared is None else None

    def calls(self) -> list[tuple[int, CallKey, bool]]:
        """Return the modules and calls of the last compared step, and whether PyTorch's own runs each."""
        return [(module, call, self._runs_stock(call)) for module, call in self._called]

    def follow(self, module: int, call: CallKey, x: Tensor) -> bool:
        """Follow a call to a module. Return whether the step leaves it to PyTorch's own convolution."""
        if self.first_layer is None:
            self.first_layer = module
        if module == self.first_layer or self._compared is not None:
            lock = self._lock
            if lock.acquire(blocking=False):
                try:
                    self._add_call(module, call, x)
                finally:
                    lock.release()
            else:
                self._is_clean = False  # another thread runs at the same time
        return self._runs_stock(call)

    def note_choice(self, call: CallKey, gain: float | None) -> None:
        """Note that a call follows its own choice, which saves the share `gain` of the call's time.

        The gain is 0 if the choice is PyTorch's own, and None while the call is undecided.
        """
        if gain is None:
            self._is_clean, self._is_undecided = False, True
        elif gain:
            is_clear = gain >= CLEAR_GAIN
            self._gains.add(is_clear)
            if not is_clear:
                self._unclear[call] = True

    def has_left_to_pytorch(self, call: CallKey) -> bool:
        """Return whether a result leaves this call of the present step to PyTorch's own convolution."""
        return self._compared is None and self._runs_stock(call)

    def describe(self, module: int) -> str:
        """Return a text about the steps that leave a module to PyTorch; empty if there are none."""
        left = {steps.left_to_pytorch.get(module) for steps in self._similar_steps.everything().values()}
        if True not in left:
            return ""
        return f"PyTorch's own in {'some' if False in left else 'all'} steps"

    def _add_call(self, module: int, call: CallKey, x: Tensor) -> None:
        """Add a call to the present step, or begin the next step with it."""
        if module == self.first_layer:
            self._end(x)
            self._begin(call, x)
        if self._compared is None:
            return
        if len(self._called) >= _MOST_CALLS:  # the program has stopped calling the first module
            self.first_layer = self._compared = None
            return
        self._called.append((module, call))
        if not self._seen[module, call] or threading.get_ident() != self._thread:
            self._seen[module, call] = True
            self._is_clean = False  # the call measures, or another thread runs at the same time

    def _runs_stock(self, call: CallKey) -> bool:
        return self._way == STOCK_WAY or (self._way == MIXTURE and self._unclear[call] is True)

    def _begin(self, call: CallKey, x: Tensor) -> None:
        steps = self._similar_steps[call]
        if steps is None:
            steps = self._similar_steps[call] = _SimilarSteps()
        may_compare = not torch.are_deterministic_algorithms_enabled() and not is_captured(x)
        if steps.result and may_compare and steps.check is not None and steps.check.note_step():
            steps.result, steps.left, steps.count, steps.turn = None, _WAYS, 0, 0
        self._way, self._compared = steps.result or CHOICES, None
        self.is_step_left_to_pytorch = steps.result == STOCK_WAY
        if steps.result or not may_compare:
            return
        self._compared, self._called, self._way = steps, [], steps.way
        self._is_clean, self._gains, self._thread = True, set(), threading.get_ident()
        self._is_undecided = False
        self._since = self._clock(str(x.device))

    def _end(self, x: Tensor) -> None:
        steps = self._compared
        if steps is None or self._since is None or not self._called:
            return
        if x.is_cuda and not is_captured(x):
            torch.cuda.synchronize(x.device)
        time = self._since.until(self._clock(str(x.device)), 1 if x.is_cuda else torch.get_num_threads())
        modules = tuple(module for module, _ in self._called)
        if not self._is_undecided and self._decide_from_cache(steps, modules):
            return
        if not self._is_clean:
            self._compared, steps.turn = None, 0
            steps.end(otherwise=None)
            return
        steps.count += 1
        if self._way == CHOICES and not self._gains:  # all choices are PyTorch's own
            steps.result = self._way = STOCK_WAY
            self._on_result({})
            return
        if steps.count > _PATIENCE:
            steps.end(otherwise=CHOICES)
            return
        # A mixture would be one of the other ways. If the choices were slower before, it was different there.
        if self._way == CHOICES and CHOICES in steps.left and len(self._gains) == 1:
            steps.left = tuple(way for way in steps.left if way != MIXTURE)
        times = steps.add(modules, time)
        if len(steps.left) == 1:
            self._decide(steps, times)
        elif steps.check is not None and steps.check.is_overspent(times):
            steps.end(None, median_ms(times))

    def _decide(self, steps: _SimilarSteps, times: Mapping[str, list[RunTime]]) -> None:
        """Choose the only way left, and keep the times in the cache.

        A check that other programs disturbed changes nothing. One that contradicts the kept times replaces
        them or, if its steps were too few to be kept, deletes them.
        """
        [result] = steps.left
        step_ms = relative_times(times, result)
        # If the shortest steps disagree, something disturbed the steps, so a later process compares again.
        shortest = {way: min(step.wall_ms for step in times[way]) for way in step_ms}
        is_clear = all((fastest(own) == STOCK_WAY) == (result == STOCK_WAY) for own in (shortest, step_ms))
        pairs = max(len(clean_pairs(times[result], own)) for way, own in times.items() if way != result)
        is_kept = self._times is not None and is_clear and pairs >= FEWEST_KEPT
        calls, earlier, checks = [call for _, call in self._called], steps.check, 0
        if earlier is not None:
            is_same = result == earlier.result
            if not is_clear or (is_same and not is_kept):
                self._way = earlier.result
                steps.end(None, step_ms, is_counted=is_clear)
                return
            if is_same:
                checks = earlier.checks + 1
            elif earlier.times is not None:
                earlier.times.forget(earlier.calls)
        if self._times is not None and is_kept:
            self._times.keep(calls, step_ms, checks)
        steps.check = StepCheck(result, calls, step_ms, self._times if is_kept else None, checks)
        self._end_comparison(steps, result, step_ms)

    def _decide_from_cache(self, steps: _SimilarSteps, modules: tuple[int, ...]) -> bool:
        """Choose a way by the cached times of this step. Return False if there are none."""
        is_new = modules not in steps.asked and len(steps.asked) < _MOST_ASKED and steps.check is None
        if self._times is None or not is_new:
            return False
        steps.asked.add(modules)
        calls = [call for _, call in self._called]
        kept = self._times.find(calls)
        if not {CHOICES, STOCK_WAY} <= kept.keys():
            return False
        step_ms = {way: kept[way] for way in _WAYS if way in kept}
        result = fastest(step_ms)
        uses, checks = self._times.add_uses(calls, 1)
        steps.check = StepCheck(result, calls, step_ms, self._times, checks, uses)
        self._end_comparison(steps, result, step_ms)
        return True

    def _end_comparison(self, steps: _SimilarSteps, result: str, step_ms: Times) -> None:
        """Run this way from now on, and log the ms of all ways."""
        self._way = steps.result = result
        steps.left_to_pytorch = {module: self._runs_stock(call) for module, call in self._called}
        steps.times.clear()
        unclear = sum(self._unclear[call] is True for _, call in self._called)
        texts = {
            CHOICES: "with the choices",
            STOCK_WAY: "with PyTorch's own convolutions",
            MIXTURE: f"with PyTorch's own in {unclear} calls where the choices save little",
        }
        names = {CHOICES: "the choices", STOCK_WAY: "PyTorch's own", MIXTURE: "the mixture"}
        compared = ", ".join(f"{step_ms[way]:.4g} ms {texts[way]}" for way in _WAYS if way in step_ms)
        _logger.info("A step takes %s: %s run", compared, names[result])
        self._on_result(step_ms)

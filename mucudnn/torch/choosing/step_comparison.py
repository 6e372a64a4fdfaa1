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

The times are kept, so that a later process with the same model does not compare again, until the steps'
trial is due (see `trials`). A comparison of slower ways costs time, so one that takes too much of the time of
the steps before it ends, and the earlier result stays.

A step lasts from one call to the model's first convolution to the next, and each shape of its input has its
own result. Programs that ask PyTorch for deterministic algorithms, and models that follow a plan, do not
compare.
"""

import statistics
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mucudnn._native import ClockReading, RunTime
from mucudnn.arrays.recent import Recent
from mucudnn.costs.checks import MOST_COST, uses_to_next_check
from mucudnn.forks import close_in_child, no_fork
from mucudnn.torch.choosing.answers import CallKey
from mucudnn.torch.choosing.decision import CLEAR_GAIN
from mucudnn.torch.choosing.faster_way import fastest, most_steps_to_compare, relative_times, slower_ways
from mucudnn.torch.choosing.trials import (
    CHOICES,
    MIXTURE,
    STEPS,
    STOCK_WAY,
    Times,
    Trial,
    key_of_step,
)
from mucudnn.torch.operators import device_times
from mucudnn.torch.operators.passes import is_captured

_PATIENCE = 400  # steps after which the choices stay without a comparison
_MOST_CALLS = 4096  # in a longer step the program has probably stopped calling its first convolution
_MOST_SHAPES = 512  # results, and as many older ones
_MOST_ASKED = 4  # different steps with the same first call that are looked up in the cache
MOST_OVERSPENT = 2  # a check ends without a result if it takes this many times its share of the steps' time
_WAYS = (CHOICES, STOCK_WAY, MIXTURE)
# The order of the ways, which begins again after its end. Each way runs two steps in a row, for programs that
# call the first convolution twice in a step: they then see both of its calls in all ways.
_TURNS = tuple(way for way in (*_WAYS, *reversed(_WAYS)) for _ in range(2))


def choose(step_ms: Times) -> str:
    """Return the fastest way by kept times; empty without those of the choices and of PyTorch's own."""
    return fastest(step_ms) if {CHOICES, STOCK_WAY} <= step_ms.keys() else ""


def _find_trial(calls: Sequence[CallKey]) -> Trial:
    return Trial(key_of_step(calls), choose)


@dataclass
class _SimilarSteps:
    """The steps that begin with the same call, and their times by the convolutions that they ran."""

    times: dict[tuple[int, ...], dict[str, list[RunTime]]] = field(default_factory=dict)
    trials: dict[tuple[int, ...], Trial] = field(default_factory=dict)  # looked up for these steps
    left: tuple[str, ...] = _WAYS  # the ways that may be the fastest
    # The place of the next step in _TURNS. At 0, a step runs with the choices, as the first step ran.
    turn: int = 0
    # All compared steps, so that a program with ever new calls does not compare longer than others.
    count: int = 0
    begun: int = 0  # all steps without a result
    result: str | None = None  # the way that runs from now on
    trial: Trial | None = None  # that of the result
    distance: float = 0.0  # the uses of the trial to its next check

    @property
    def way(self) -> str:
        """The way of the next step."""
        return _TURNS[self.turn % len(_TURNS)]

    def count_step(self) -> None:
        """Count a step that ran by the result, and begin a new comparison if a check is due."""
        if self.trial is not None and self.trial.note_use(self.distance):
            self.result, self.left, self.count, self.turn = None, _WAYS, 0, 0

    def follow(self, trial: Trial) -> None:
        """Let the result of a trial stay until its next check."""
        self.trial, self.result = trial, trial.choice
        self.times.clear()
        own_ms = trial.times[trial.choice]
        slower = [ms for ms in trial.times.values() if ms > own_ms]
        check_ms = sum((ms - own_ms) * most_steps_to_compare(ms / own_ms) for ms in slower)
        self.distance = uses_to_next_check(check_ms, own_ms, STEPS, trial.checks)

    def end(self, otherwise: str | None, *, is_disturbed: bool = True) -> None:
        """End a comparison without a result: go on with the earlier one, or with `otherwise`."""
        self.result = otherwise
        if self.trial is not None:
            self.trial.settle({}, self.trial.choice, is_disturbed=is_disturbed)
            self.follow(self.trial)

    def is_overspent(self, times: Mapping[str, Sequence[RunTime]]) -> bool:
        """Return whether a check with these steps so far takes too much of the time of the steps before it.

        It does if the kept times hide how slow another way is, or if a busy machine keeps it from an end.
        """
        if self.trial is None or self.trial.choice not in times:
            return False
        own_ms = statistics.median(step.wall_ms for step in times[self.trial.choice])
        lost_ms = sum(
            step.wall_ms - own_ms
            for way, steps in times.items()
            if way != self.trial.choice
            for step in steps
        )
        return lost_ms > MOST_OVERSPENT * MOST_COST * self.distance * own_ms

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
        find_trial: Callable[[Sequence[CallKey]], Trial] = _find_trial,
        clock: Callable[[str], ClockReading] = device_times.read_clocks,
        on_result: Callable[[Times, int], None] = lambda step_ms, steps: None,
    ) -> None:
        """Begin without steps. `find_trial` looks up the trial of a step with some calls.

        `on_result` takes the ms of a compared step by way, and the number of steps without a result. It takes
        no times if the step was not compared, because PyTorch runs all of its calls anyway.
        """
        self._find_trial, self._clock, self._on_result = find_trial, clock, on_result
        self.first_layer: int | None = None  # the module whose call begins a step
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

    @property
    def is_step_left_to_pytorch(self) -> bool:
        """True if a result leaves the present step to PyTorch's own convolutions.

        A call to the first layer begins the next step.
        """
        return self.result == STOCK_WAY

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
        if steps.result and may_compare:
            steps.count_step()
        self._way, self._compared = steps.result or CHOICES, None
        if steps.result or not may_compare:
            return
        steps.begun += 1
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
            self._on_result({}, steps.begun)
            return
        if steps.count > _PATIENCE:
            steps.end(otherwise=CHOICES)
            return
        # A mixture would be one of the other ways. If the choices were slower before, it was different there.
        if self._way == CHOICES and CHOICES in steps.left and len(self._gains) == 1:
            steps.left = tuple(way for way in steps.left if way != MIXTURE)
        times = steps.add(modules, time)
        if len(steps.left) == 1:
            self._decide(steps, modules, times)
        elif steps.is_overspent(times):  # the next check is the later, too
            steps.end(otherwise=None, is_disturbed=False)

    def _decide(
        self, steps: _SimilarSteps, modules: tuple[int, ...], times: Mapping[str, list[RunTime]]
    ) -> None:
        """Choose the only way left, unless other programs disturbed a check of an earlier result."""
        [result] = steps.left
        step_ms = relative_times(times, result)
        # If the shortest steps disagree, something disturbed the steps, so a later process compares again.
        shortest = {way: min(step.wall_ms for step in times[way]) for way in step_ms}
        is_clear = all((fastest(own) == STOCK_WAY) == (result == STOCK_WAY) for own in (shortest, step_ms))
        trial = steps.trial or steps.trials.get(modules) or self._find_trial(self._calls)
        trial.settle(step_ms, result, is_disturbed=not is_clear)
        self._end_comparison(steps, trial)

    def _decide_from_cache(self, steps: _SimilarSteps, modules: tuple[int, ...]) -> bool:
        """Choose a way by the cached times of this step. Return False if there are none."""
        if modules in steps.trials or len(steps.trials) >= _MOST_ASKED or steps.trial is not None:
            return False
        trial = steps.trials[modules] = self._find_trial(self._calls)
        if not trial.choice:
            return False
        self._end_comparison(steps, trial)
        return True

    @property
    def _calls(self) -> list[CallKey]:
        return [call for _, call in self._called]

    def _end_comparison(self, steps: _SimilarSteps, trial: Trial) -> None:
        """Run the trial's way from now on, and report the ms of all ways."""
        steps.follow(trial)
        self._way = trial.choice
        self._on_result(trial.times, steps.begun)

"""The settings that `convert` gives modules, which share the comparison of their steps."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from mucudnn import settings
from mucudnn.arrays.call import LogListener
from mucudnn.errors import MucudnnWarning
from mucudnn.forks import no_fork
from mucudnn.measuring.budget import Budget, spell_budget
from mucudnn.output.text import milliseconds
from mucudnn.plans.plan import Plan
from mucudnn.promises import USUAL, Promise, promise_of
from mucudnn.sizes import spell_limit
from mucudnn.torch.choosing import answers
from mucudnn.torch.choosing.answers import Answer, CallKey
from mucudnn.torch.choosing.faster_way import fastest
from mucudnn.torch.choosing.sightings import Sightings
from mucudnn.torch.choosing.step_comparison import StepComparison
from mucudnn.torch.choosing.trials import CHOICES, MIXTURE, STOCK_WAY
from mucudnn.torch.operators.options import handle_of
from mucudnn.torch.operators.passes import warn_if_not_kept

UNREACHED = "stays PyTorch's, because its forward calls none of PyTorch's functions for convolutions"


class ConversionSettings:
    """The options that `convert` gives a module, which are pickled with it.

    Unpickling registers the plan in the process. Without a promise the modules keep the plan's, or else
    promise what the variables say.
    """

    def __init__(
        self,
        workspace: str | None = None,
        plan: str | None = None,
        tune: str = "eager",
        promise: Promise | None = None,
        budget_s: float | None = None,
    ) -> None:
        known = None if plan is None else Plan.parse(plan)
        if promise is None and known is not None and known.promise != USUAL:
            promise = known.promise
        self.workspace = workspace
        self.promise = promise or promise_of()
        self.tune = tune if self.promise.is_timed else "eager"  # else nothing is measured
        self.promise_text = str(self.promise)
        self._plan = plan
        # Inductor promises nothing, a plan is followed exactly, and the other ways to tune leave compiled
        # convolutions to PyTorch.
        self.may_inductor_decide = plan is None and self.tune == "eager" and not self.promise_text
        self._budget_s = budget_s
        self.sightings = Sightings(None if budget_s is None else Budget(budget_s))
        self.comparison: StepComparison | None = None
        # Whole steps of PyTorch's own convolutions promise nothing.
        if plan is None and tune != "never" and not self.promise_text:
            self.comparison = StepComparison(on_result=self._report)
        self.handle = None if known is None else handle_of(known)
        # Call keys contain this text because the settings themselves would keep the comparison alive.
        self.key = f"{workspace}, {self.handle}, {tune}, {self.promise}"
        self.methods: WeakSet[Any] = WeakSet()  # all modules with these settings have one
        self.unreached: set[str] = set()  # the classes in whose forward no convolution was found
        self._is_begun = self._is_reported = False
        self.is_left_to_pytorch = False

    def leaves_to_pytorch(self, module: Any, key: CallKey | None, input: Tensor) -> bool:
        """Return whether PyTorch's own convolution runs a call because that makes the whole step faster."""
        comparison = self.comparison
        if comparison is None or (key is None and torch.compiler.is_compiling()):
            return False
        # A call without a key is traced, for example, and a traced model stays divided.
        is_left = key is not None and comparison.follow(id(module), key, input)
        is_step_left = key is not None and comparison.is_step_left_to_pytorch
        if self.is_left_to_pytorch != is_step_left:
            self.leave_to_pytorch(is_step_left)
        return is_left

    def note_choice(self, key: CallKey | None, answer: Answer | None) -> None:
        """Tell the step comparison that a call follows its own answer; None for a call without an answer."""
        if key is not None and self.comparison is not None:
            if answer is not None and not answer.is_final and not self._is_begun:
                self._is_begun = True
                text = f"measuring {len(self.methods)} layers in the first steps, which take longer"
                LogListener().conclude(text, is_shown=True)
            gain = answer.gain if answer is not None and answer.is_final else None
            self.comparison.note_choice(key, gain)

    def warn_if_not_kept(self, input: Tensor) -> None:
        """Warn if PyTorch itself convolves this input, which is not empty, and the model has a promise."""
        if self.promise_text and (torch.compiler.is_compiling() or 0 not in input.shape):
            warn_if_not_kept(self.promise_text)

    def leave_to_pytorch(self, is_left: bool) -> None:
        """Let PyTorch's own convolutions run the modules at once, or let these look their answers up again.

        The first layer of a step always looks, because its call shows which step begins.
        """
        with no_fork:  # another thread may convert or restore the model
            self.is_left_to_pytorch = is_left
            first = None if self.comparison is None else self.comparison.first_layer
            for method in list(self.methods):
                method.is_stock = is_left and method.layer != first

    def _report(self, step_ms: Mapping[str, float], steps: int) -> None:
        """Log what was decided for a step, and show it on a terminal for the first step."""
        if self.comparison is not None:
            text = conclusion(self.comparison.calls(), step_ms, steps, self.sightings.deciding_s)
            LogListener().conclude(text, is_shown=not self._is_reported)
            self._is_reported = True

    def warn_unreached(self, name: str) -> None:
        """Warn, once, that the forward of a class runs no convolution that can be divided."""
        if name not in self.unreached:
            self.unreached.add(name)
            warnings.warn(f"mucudnn: {name} {UNREACHED}", MucudnnWarning, stacklevel=4)

    def add(self, method: Any) -> None:
        """Register a method that follows these settings."""
        with no_fork:
            self.methods.add(method)

    def __str__(self) -> str:
        """Return a text such as `workspace=16MiB`, or `plan=1f0c3a2b, workspace=16MiB`."""
        plan = "" if self._plan is None else f"plan={Plan.parse(self._plan).digest[:8]}, "
        tune = "" if self.tune == "eager" else f", tune={self.tune}"
        budget = "" if self._budget_s is None else f", budget={spell_budget(self._budget_s)}"
        limit = self.workspace or spell_limit(settings.WORKSPACE_LIMIT.read())
        promise = f", {self.promise}" if self.promise_text else ""
        return f"{plan}workspace={limit}{tune}{budget}{promise}"

    def __reduce__(self) -> tuple[type["ConversionSettings"], tuple[Any, ...]]:
        return ConversionSettings, (self.workspace, self._plan, self.tune, self.promise, self._budget_s)


def conclusion(
    calls: Sequence[tuple[int, CallKey, bool]], step_ms: Mapping[str, float], steps: int, deciding_s: float
) -> str:
    """Return a sentence about the calls of a step, each with its module and whether PyTorch's own runs it.

    `step_ms` has the ms of the step by way, without ways that other programs disturbed too much. It is empty
    if no step was compared. `steps` is the number of steps up to the choice, and `deciding_s` the seconds
    that they spent on it.
    """
    decided = [(answers.find(call), is_stock) for _, call, is_stock in calls]
    ours = [answer for answer, is_stock in decided if answer is not None and not is_stock and answer.gain]
    busy = sum(answer is not None and answer.is_busy for answer, _ in decided)
    divided = sum(answer.is_divided for answer in ours)
    counts = {
        "divided": divided,
        "by another algorithm": len(ours) - divided,
        "left to PyTorch": len(calls) - len(ours),
    }
    texts = ", ".join(f"{count} {text}" for text, count in counts.items() if count)
    parts = [f"{len(calls)} convolution{'s' * (len(calls) != 1)}: {texts}"]
    if STOCK_WAY in step_ms and not step_ms.keys().isdisjoint((CHOICES, MIXTURE)):
        parts.insert(0, _compare(step_ms))
    again = f"a busy machine: later runs measure {busy} again" if busy else "a quiet machine"
    parts.append(f"chose in {steps} steps and {deciding_s:.1f} s, on {again}")
    return f"{'; '.join(parts)}; mucudnn.torch.summary(model) shows more"


def _compare(step_ms: Mapping[str, float]) -> str:
    """Return a text about the time of a step with mucudnn's choices, and with PyTorch's own convolutions."""
    stock_ms, own_ms = step_ms[STOCK_WAY], min(step_ms[way] for way in (CHOICES, MIXTURE) if way in step_ms)
    if fastest(step_ms) == STOCK_WAY:
        return f"mucudnn's choices took {own_ms / stock_ms:.2f} times as long as PyTorch's own convolutions"
    times = f"{milliseconds(own_ms)} ms a step instead of {milliseconds(stock_ms)} ms"
    return f"{stock_ms / own_ms:.2f} times as fast as PyTorch's own convolutions ({times})"

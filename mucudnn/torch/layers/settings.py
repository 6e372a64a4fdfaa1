"""The settings that `convert` gives a module, and the class that runs the module in the present step."""

from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from mucudnn import settings
from mucudnn.forks import no_fork
from mucudnn.plans.plan import Plan
from mucudnn.sizes import spell_limit
from mucudnn.torch.choosing.answers import Answer, CallKey
from mucudnn.torch.choosing.step_comparison import StepComparison
from mucudnn.torch.choosing.step_times import StepTimes
from mucudnn.torch.operators.options import handle_of


class ConversionSettings:
    """The workspace limit and the plan that `convert` gives a module, as text, the plan's handle, and `tune`.

    They are pickled with the module. Unpickling makes the plan known to the process.
    """

    def __init__(self, workspace: str | None = None, plan: str | None = None, tune: str = "eager") -> None:
        self.workspace = workspace
        self.tune = tune
        self._plan = plan
        self.comparison = StepComparison(StepTimes()) if plan is None and tune != "never" else None
        self.handle = None if plan is None else handle_of(Plan.parse(plan))
        # The key of a call has this text: the settings themselves would keep the comparison alive.
        self.key = f"{workspace}, {self.handle}, {tune}"
        self.modules: WeakSet[Any] = WeakSet()  # all that have these settings
        self.is_left_to_pytorch = False  # True while the modules are of their stock classes

    def is_inside_stock_step(self, module: Any) -> bool:
        """Return whether another module began the present step, which is left to PyTorch.

        A parametrized module, which has no stock class, asks in each such call.
        """
        steps = self.comparison
        is_left = steps is not None and steps.is_step_left_to_pytorch and steps.first_layer != id(module)
        return is_left and not torch.jit.is_tracing()

    def leaves_to_pytorch(self, module: Any, key: CallKey | None, input: Tensor) -> bool:
        """Return whether PyTorch's own convolution runs a call because it is faster in the whole step."""
        comparison = self.comparison
        if comparison is None or (key is None and torch.compiler.is_compiling()):
            return False
        # A call without a key is traced, for example: a traced model stays divided.
        is_left = key is not None and comparison.follow(id(module), key, input)
        is_step_left = key is not None and comparison.is_step_left_to_pytorch
        if self.is_left_to_pytorch != is_step_left:
            self.leave_to_pytorch(is_step_left)
        return is_left

    def note_choice(self, key: CallKey | None, answer: Answer | None) -> None:
        """Note for the comparison of steps that a call follows its own answer; None while it is undecided."""
        if key is not None and self.comparison is not None:
            self.comparison.note_choice(key, None if answer is None else answer.gain)

    def leave_to_pytorch(self, is_left: bool) -> None:
        """Let the modules be of their stock classes, or look for their answers again.

        The first layer of a step always looks, because its call says which step begins.
        """
        with no_fork:  # another thread may convert or restore the model
            self.is_left_to_pytorch = is_left
            first = None if self.comparison is None else self.comparison.first_layer
            for module in list(self.modules):
                if getattr(module, "_mucudnn", None) is self:  # not restored nor converted again
                    module._mucudnn_use_stock_class(is_left and id(module) != first)

    def add(self, module: Any) -> None:
        """Note a module that has these settings."""
        with no_fork:
            self.modules.add(module)

    def __str__(self) -> str:
        """Return a text such as `workspace=16MiB`, or `plan=1f0c3a2b, workspace=16MiB`."""
        plan = "" if self._plan is None else f"plan={Plan.parse(self._plan).digest[:8]}, "
        tune = "" if self.tune == "eager" else f", tune={self.tune}"
        return f"{plan}workspace={self.workspace or spell_limit(settings.WORKSPACE_LIMIT.read())}{tune}"

    def __reduce__(self) -> tuple[type["ConversionSettings"], tuple[str | None, str | None, str]]:
        return ConversionSettings, (self.workspace, self._plan, self.tune)

"""`convert` and `restore`: make the convolutions of a model run divided, in place, and undo it."""

import logging
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from mucudnn import settings
from mucudnn.arrays.call import PlanOrPath, known_plan
from mucudnn.arrays.recent import Recent
from mucudnn.errors import UsageError, shown
from mucudnn.forks import no_fork
from mucudnn.plans.plan import Plan
from mucudnn.sizes import spell_limit
from mucudnn.torch.choosing import calls as layers
from mucudnn.torch.choosing.step_comparison import Judge
from mucudnn.torch.choosing.step_times import StepTimes
from mucudnn.torch.layers import functional, transposed
from mucudnn.torch.layers.choice_of_layer import choice_of_forward
from mucudnn.torch.layers.sharing import plans_of_layers
from mucudnn.torch.layers.stock_class import class_of_short_way
from mucudnn.torch.layers.transposed import LEAF
from mucudnn.torch.operators import passes
from mucudnn.torch.operators.derivatives import convolve
from mucudnn.torch.operators.options import handle_of
from mucudnn.torch.operators.passes import can_divide, is_captured

Model = TypeVar("Model")
TUNE = ("eager", "background", "never")
_logger = logging.getLogger("mucudnn")
_MOST_TOLD = 64  # sentences of the log about a layer that are not repeated, and as many older ones
_told: WeakKeyDictionary[nn.Module, Recent[str, bool]] = WeakKeyDictionary()


class ConversionSettings:
    """The workspace limit and the plan that `convert` gives a module, as text, the plan's handle, and `tune`.

    They are pickled with the module. Unpickling makes the plan known to the process.
    """

    def __init__(self, workspace: str | None = None, plan: str | None = None, tune: str = "eager") -> None:
        self.workspace = workspace
        self.tune = tune
        self._plan = plan
        self.judge = Judge(StepTimes()) if plan is None and tune != "never" else None
        self.handle = None if plan is None else handle_of(Plan.parse(plan))
        # The key of decisions about calls is a text: the settings themselves would keep the judge alive.
        self.key = f"{workspace}, {self.handle}, {tune}"
        self.modules: WeakSet[Any] = WeakSet()  # those that have these settings
        self.is_given = False  # True while the modules take the short way to PyTorch's own convolutions

    def give(self, is_given: bool) -> None:
        """Let the modules take the short way to PyTorch's own convolutions, or look for their choices again.

        The first module of a step always looks, because its call tells which step begins.
        """
        with no_fork:  # another thread may convert or restore the model
            self.is_given = is_given
            for module in list(self.modules):
                if getattr(module, "_mucudnn", None) is not self:  # it was restored or converted again
                    continue
                divided = _WITHOUT_SHORT_WAY.get(type(module), type(module))
                is_first = self.judge is not None and self.judge.leader == id(module)
                takes_short_way = is_given and not is_first
                module.__class__ = _SHORT_WAY.get(divided, divided) if takes_short_way else divided

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


class _Divided:
    """A base class in front of PyTorch's module: only the convolution itself changes, and runs divided."""

    # None if the module was parametrized after `convert` and then restored: parametrization made a subclass
    # of this class, which `restore` cannot replace. The module then runs PyTorch's own convolution.
    _mucudnn: ConversionSettings | None = None
    _mucudnn_name: str | None = None  # the layer's name in its model, for the log

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        chosen = self._mucudnn
        # `super()` would fail where another thread restores the module meanwhile.
        run_stock = _RUN_STOCK[len(self.kernel_size)]
        if chosen is not None:
            # Each layer pays for these lines in each call, which small networks feel.
            if (
                not torch.compiler.is_compiling()
                and (judge := chosen.judge) is not None
                and judge.has_given_step
                and judge.leader != id(self)
                and isinstance(input, Tensor)
                and not torch.jit.is_tracing()
            ):
                return run_stock(self, input, weight, bias)
            if isinstance(input, functional.DividedInput):
                return _run_divided(self, input, weight, bias, chosen)
            call = _call_of(self, input, weight, bias, chosen)
            judge = None if call is None else chosen.judge
            if judge is not None:
                is_for_step = judge.wants_stock(id(self), call, input)
                if chosen.is_given != judge.has_given_step:
                    chosen.give(judge.has_given_step)
                if is_for_step:
                    return run_stock(self, input, weight, bias)
            elif not torch.compiler.is_compiling() and chosen.is_given:
                chosen.give(False)  # a traced model stays divided
            decision = None if call is None else layers.decision_of(call)  # compiled code has no call
            if decision is not None:
                if decision.options is None:
                    return run_stock(self, input, weight, bias)
                if not (is_captured(input) or _logger.isEnabledFor(logging.INFO)):
                    if judge is not None:
                        judge.note(call, decision.gain)
                    return convolve("forward", input, weight, bias, decision.options)
            if can_divide(input, weight):
                given = operands_of(self, input, weight, bias, chosen)
                gain = functional.gain_of(given, chosen.tune, id(self))
                is_stock = None if gain is None else gain == 0
                if judge is not None:
                    judge.note(call, gain)
                functional.remember(call, given, gain, input, weight, bias)
                is_ours = is_stock is False or (is_stock is None and chosen.tune == "eager")
                y = functional.run(given) if is_ours else None
                is_decided = is_stock is not None or chosen.tune == "eager"
                if is_decided and not torch.compiler.is_compiling() and _logger.isEnabledFor(logging.INFO):
                    _tell(self, given, is_stock)
                if y is not None:
                    return y
        return run_stock(self, input, weight, bias)

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        if self._mucudnn is not None:
            self._mucudnn.add(self)

    def extra_repr(self: Any) -> str:
        """Return PyTorch's text with the workspace limit, and with the plan if there is one."""
        text: str = super().extra_repr()  # type: ignore[misc]  # PyTorch's method
        chosen = self._mucudnn
        if chosen is None:
            return text
        steps = chosen.judge.tell(id(self)) if chosen.judge is not None else ""
        return ", ".join(filter(None, (text, str(chosen), steps)))

    def __prepare_scriptable__(self: Any) -> Any:
        """Raise a UsageError that says what to do: `torch.jit.script` calls this method of each module."""
        if self._mucudnn is None:
            return self
        raise UsageError(
            "torch.jit.script cannot compile a converted model: call mucudnn.torch.restore(model) first, "
            "or use torch.jit.trace"
        )


class Conv1d(_Divided, nn.Conv1d):
    """`torch.nn.Conv1d`, divided."""


class Conv2d(_Divided, nn.Conv2d):
    """`torch.nn.Conv2d`, divided."""


class Conv3d(_Divided, nn.Conv3d):
    """`torch.nn.Conv3d`, divided."""


_RUN_STOCK: dict[int, Callable[..., Tensor]] = {
    1: nn.Conv1d._conv_forward,
    2: nn.Conv2d._conv_forward,
    3: nn.Conv3d._conv_forward,
}
_DIVIDED: dict[type, type] = {nn.Conv1d: Conv1d, nn.Conv2d: Conv2d, nn.Conv3d: Conv3d}
_SHORT_WAY: dict[type, type] = {
    divided: class_of_short_way(divided, stock) for stock, divided in _DIVIDED.items()
}
_WITHOUT_SHORT_WAY = {short: divided for divided, short in _SHORT_WAY.items()}
_STOCK: dict[type, type] = {divided: stock for stock, divided in _DIVIDED.items()}
_STOCK |= {short: _STOCK[divided] for divided, short in _SHORT_WAY.items()}


def convert(
    model: Model,
    *,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
    tune: str = "eager",
) -> Model:
    """Divide the convolutions of a model, in place, and return the model.

    Each pass of every nn.Conv1d, 2d and 3d, at any depth, uses at most `workspace` bytes of scratch memory
    ("16MiB", "none"); the default is MUCUDNN_WORKSPACE_LIMIT. With a `plan` (a Plan of `mucudnn.torch.plan`,
    or the path of one) it runs as the plan says. Identical layers take the plan's shares, if it has some, in
    the order of the model. A kernel that the plan lacks, such as a smaller last mini-batch, runs within
    `workspace`.

    `tune` says when the kernels are measured that neither a plan nor the cache has. "eager" measures in the
    first call with a shape. "background" runs PyTorch's own convolutions until a thread has decided: the
    program waits for the thread between two steps, for half of the time of a step. "never" measures nothing,
    and PyTorch runs what is not decided. With these two, PyTorch also runs compiled and transformed calls.
    Ctrl-C loses no measurement.

    When all convolutions are decided, the model compares whole steps: some of its next steps run with the
    choices, some with PyTorch's own convolutions, and some with a mixture of both, in which the choices run
    where they save at least a quarter of a call's time. Most ways get at most eight steps, or 65 short ones,
    and twice as many if these leave it open which is the fastest. The fastest way stays, for each shape of
    the input, and the log says which. PyTorch's own convolutions stay where the steps leave
    doubt. The cache keeps the times, so that a later process does not compare again.
    A model with a plan does not compare, nor with "never", nor a program that calls
    `torch.use_deterministic_algorithms(True)`.

    Parameters, state_dict, hooks, DistributedDataParallel, pickling and copies stay as they were. A process
    that loads a pickled model needs mucudnn. Subclasses of the three modules are left alone. Parametrized
    modules are subclasses, so convert a model before you parametrize it. Lazy modules are subclasses until
    they have run. `torch.fx` takes converted modules for leaves, so a traced model stays converted.

    Quantization and `torch.jit.script` look for PyTorch's own classes: restore the model before.
    `torch.jit.trace` and `torch.export` with strict=True keep a model divided, but no other process knows its
    plan. `torch.export` with strict=False and ONNX get PyTorch's own convolutions.

    On the CPU a convolution uses as many threads as PyTorch (`torch.set_num_threads`), or MUCUDNN_THREADS if
    that is set. Times on one number of threads say nothing about another, so each number is measured.

    Under the transforms of `torch.func` and in forward mode the convolutions are divided too. vmap runs one
    larger convolution, which the plan lacks and which therefore runs within `workspace`.

    A converted model raises no new errors. A convolution that cannot be divided runs as it did before: one
    of an empty mini-batch, of complex numbers or of subclasses of tensors, one on a device without an engine,
    one in a compiled transform, and one that a CUDA graph captures. If the cause shows only when the
    convolution is prepared or run, a MucudnnWarning says so.

    Raises UsageError (a ValueError) for a model without convolutions or another `tune`, and MucudnnError for
    a plan that cannot be read.
    """
    # A wrong limit or plan is an error here, and not in the first call of the model.
    limit, known = functional.spelled(workspace), None if plan is None else known_plan(plan)
    if tune not in TUNE:
        raise UsageError(f"tune is {shown(tune)}: there are {', '.join(TUNE)}")
    names = {module: name for name, module in cast(nn.Module, model).named_modules()}
    found = convolutions(model)
    plans: list[str | None] = [None] * len(found) if known is None else [*plans_of_layers(known, found)]
    chosen = {own: ConversionSettings(limit, own, tune) for own in set(plans)}
    for module, own in zip(found, plans, strict=True):
        _divide(module, names[module], chosen[own])
    return model


def divide(module: Any, name: str, workspace: str, plan: str) -> None:
    """Make one convolution, also a transposed one, run as the text of a plan says; other modules stay."""
    chosen = ConversionSettings(workspace, plan)
    if type(module) in _DIVIDED or isinstance(module, _Divided):
        _divide(module, name, chosen)
    transposed.follow_plan(module, chosen)


def _divide(module: Any, name: str, chosen: ConversionSettings) -> None:
    with no_fork:
        divided = _WITHOUT_SHORT_WAY.get(type(module), type(module))
        module.__class__ = _DIVIDED.get(divided, divided)
        module.__module__ = LEAF
        module._mucudnn_name = name or type(module).__name__
        module._mucudnn = chosen
        chosen.add(module)


def restore(model: Model) -> Model:
    """Undo `convert`, in place, and return the model."""
    modules: Any = model
    for module in modules.modules():
        transposed.restore(module)
        if isinstance(module, _Divided):
            with no_fork:
                module.__class__ = _STOCK.get(type(module), type(module))
                for name in ("_mucudnn", "_mucudnn_name", "__module__"):
                    module.__dict__.pop(name, None)
    return model


def convolutions(model: Any) -> list[Any]:
    """Return the modules that can be converted or already are. Raises UsageError if there is none."""
    found = [module for module in model.modules() if type(module) in _DIVIDED or isinstance(module, _Divided)]
    if not found:
        raise UsageError("the model has no nn.Conv1d, nn.Conv2d or nn.Conv3d: there is nothing to divide")
    return found


def converted(model: Any) -> dict[Any, str]:
    """Return the converted modules with their names. Raises UsageError if there is none."""
    named = {module: name for name, module in model.named_modules()}
    found = {m: name or type(m).__name__ for m, name in named.items() if getattr(m, "_mucudnn", None)}
    if not found:
        raise UsageError("the model has no converted convolution: call mucudnn.torch.convert(model) first")
    return found


def is_given_to_stock(module: Any, input: Tensor) -> bool:
    """Return whether PyTorch's own convolution ran a call of a module that has just ended, for its step."""
    chosen = module._mucudnn
    call = _call_of(module, input, module.weight, module.bias, chosen)
    return chosen.judge is not None and call is not None and chosen.judge.has_given_to_stock(call)


def _call_of(
    module: Any, input: Tensor, weight: Tensor, bias: Tensor | None, chosen: ConversionSettings
) -> Hashable | None:
    return layers.call_of(
        input, weight, bias, chosen.workspace, chosen.key,
        module.stride, module.padding, module.dilation, module.groups, module.padding_mode,
    )  # fmt: skip


def _tell(module: Any, given: functional.Operands, is_stock: bool | None) -> None:
    """Log the choice for a layer, once for each kernel of it."""
    if torch.jit.is_tracing() or not passes.is_plain(given.x):
        return
    name = getattr(module, "_mucudnn_name", None) or type(module).__name__  # it may have been restored
    choice = choice_of_forward(name, given, bool(is_stock))
    told = _told.setdefault(module, Recent(_MOST_TOLD))
    if not told[choice]:
        told[choice] = True
        _logger.info("%s", choice)


def _run_divided(
    module: Any, input: Any, weight: Tensor, bias: Tensor | None, chosen: ConversionSettings
) -> Any:
    """Run a module's convolution on a tensor that is divided over ranks."""
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[weight.dim() - 3]
    input, padding = _padded(module, input)
    return functional.overridden(
        function, input, weight, bias, module.stride, padding, module.dilation, module.groups,
        chosen.workspace, chosen.handle,
    )  # fmt: skip


def _padded(module: Any, input: Any) -> tuple[Any, Any]:
    """Return the input and the padding that remains; a padding mode other than zeros pads here."""
    if module.padding_mode == "zeros":
        return input, module.padding
    around = module._reversed_padding_repeated_twice
    return nn.functional.pad(input, around, mode=module.padding_mode), 0


def operands_of(
    module: Any, input: Tensor, weight: Tensor, bias: Tensor | None, chosen: ConversionSettings
) -> functional.Operands:
    """Return the operator's arguments for a call of a module's forward; other padding modes pad here."""
    input, padding = _padded(module, input)
    return functional.operands(
        weight.dim() - 2, input, weight, bias, module.stride, padding, module.dilation, module.groups,
        chosen.workspace, chosen.handle, fallback=True,
    )  # fmt: skip

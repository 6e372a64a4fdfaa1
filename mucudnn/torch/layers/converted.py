"""The modules that `convert` makes, which choose in each call whether mucudnn or PyTorch runs it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling

from mucudnn.arrays.call import PassCall, geometry
from mucudnn.arrays.dispatch import decided
from mucudnn.errors import UsageError
from mucudnn.output.text import micro_batches
from mucudnn.problems.descriptor import short_text
from mucudnn.torch.choosing import answers
from mucudnn.torch.choosing.answers import CallKey
from mucudnn.torch.choosing.decision import decide
from mucudnn.torch.compiling.tracing import is_left_to_inductor
from mucudnn.torch.layers import functional
from mucudnn.torch.layers.settings import ConversionSettings
from mucudnn.torch.operators import kept_filters, passes
from mucudnn.torch.operators.operands import Operands, prepare_operands
from mucudnn.torch.operators.options import Options, plan_of
from mucudnn.torch.operators.passes import can_divide

STEPS_REASON = "whole steps were fastest with them"
CALL_REASON = "measured, no choice of mucudnn's was faster"


@dataclass(frozen=True)
class LayerChoice:
    """The choice for one pass of one layer; `kernel` is its short descriptor.

    `micro_batches` is a text such as `4×16 WINOGRAD_NONFUSED`, or `1×1 WINOGRAD_NONFUSED in tiles of 8` if
    the samples are divided as well. `time_ms` is the predicted time, and `workspace` the bytes that the pass
    uses. `parts` is the number of micro-batches or groups. All four are None for a pass that PyTorch
    computes, and `reason` says why it does. `is_busy` says that other programs disturbed a measurement that
    the choice depends on.
    """

    layer: str
    pass_: str
    kernel: str
    micro_batches: str | None = None
    time_ms: float | None = None
    workspace: int | None = None
    parts: int | None = None
    reason: str | None = None
    is_busy: bool = False


def choice_of_pass(name: str, call: PassCall, options: Options, stock: str | None = None) -> LayerChoice:
    """Return the choice for a pass of a layer, without details while the pass is undecided.

    `stock` says why PyTorch computes the pass; it is None if mucudnn does.
    """
    ready = decided(call, plan_of(options.plan)) if stock is None else None
    if ready is None:
        reason = stock or "not measured yet, and missing in the plan and the cache"
        return LayerChoice(name, call.pass_, short_text(geometry(call)[0]), reason=reason)
    chosen = ready.configuration
    text = micro_batches(chosen, " + ")
    figures = ready.predicted_ms, ready.workspace, len(chosen.parts)
    return LayerChoice(name, call.pass_, short_text(ready.problem), text, *figures, is_busy=ready.is_busy)


class Converted:
    """A base class in front of PyTorch's module that divides the convolution and changes nothing else."""

    # None if the module was parametrized after `convert` and then restored. It runs PyTorch's own convolution
    # because `restore` cannot replace the subclass of this class that parametrization made.
    _mucudnn: ConversionSettings | None = None
    weight: Tensor

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Run the convolution with mucudnn's operators or with PyTorch's own."""
        settings = self._mucudnn
        # `super()` would fail if another thread restored the module meanwhile.
        run_stock = _RUN_STOCK[len(self.kernel_size)]
        if settings is None:
            return run_stock(self, input, weight, bias)
        if isinstance(input, functional.DividedInput):
            return _run_on_ranks(self, input, weight, bias, settings)
        if (
            is_dynamo_compiling()
            and settings.may_inductor_decide
            and is_left_to_inductor(settings.workspace, input.device)
        ):
            return run_stock(self, input, weight, bias)
        operands = _choose(self, input, weight, bias, settings)
        return run_stock(self, input, weight, bias) if operands is None else operands.run()

    def _mucudnn_use_stock_class(self: Any, is_stock: bool) -> None:
        """Switch to the stock class or back; a parametrized module keeps its class."""
        own = RESTORED.get(type(self))
        if own is not None:
            self.__class__ = (_STOCK_CLASS if is_stock else CONVERTED)[own]

    def __setstate__(self: Any, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[misc]
        if self._mucudnn is not None:
            self._mucudnn.add(self)

    def extra_repr(self: Any) -> str:
        """Return PyTorch's text with the workspace limit and the plan, if any."""
        text: str = super().extra_repr()  # type: ignore[misc]  # PyTorch's method
        settings = self._mucudnn
        if settings is None:
            return text
        return f"{text}, {settings}"

    def __prepare_scriptable__(self: Any) -> Any:
        """Raise a UsageError with advice: `torch.jit.script` calls this method of each module."""
        if self._mucudnn is None:
            return self
        raise UsageError(
            "torch.jit.script cannot compile a converted model: call mucudnn.torch.restore(model) first, "
            "or use torch.jit.trace"
        )


class Conv1d(Converted, nn.Conv1d):
    """`torch.nn.Conv1d`, divided."""


class Conv2d(Converted, nn.Conv2d):
    """`torch.nn.Conv2d`, divided."""


class Conv3d(Converted, nn.Conv3d):
    """`torch.nn.Conv3d`, divided."""


def _stock_class_of(converted: Any, own: Any) -> type:
    """Return a subclass of `converted` whose modules run the convolution of PyTorch's class `own` at once.

    A converted module looks up its answer in each call. In a network, whose data pushes the interpreter's
    code out of the caches, this costs 5 to 24 µs on an EPYC (Zen 3), but only 0.2 to 4 µs in the stock class:
    see `python -m bench run calls`.

    Subclasses of tensors, compilers, and modules of further subclasses, such as parametrized modules, still
    get the converted module. Copies and pickles are `converted` modules, so they compare their own steps.
    """
    run_stock = own._conv_forward

    def conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        # Every line here adds to the cost of every call.
        if not is_dynamo_compiling() and type(input) is Tensor and type(self) is stock_class:
            return run_stock(self, input, weight, bias)
        return converted._conv_forward(self, input, weight, bias)

    def reduce(self: Any, protocol: Any) -> Any:
        # Only the older protocols may name a class other than the module's own.
        make, (made, *more), *state = converted.__reduce_ex__(self, 1)
        return make, (converted if made is stock_class else made, *more), *state

    methods = {"_conv_forward": conv_forward, "__reduce_ex__": reduce, "__module__": converted.__module__}
    stock_class = type(converted.__name__, (converted,), methods)
    return stock_class


CONVERTED: dict[Any, type] = {nn.Conv1d: Conv1d, nn.Conv2d: Conv2d, nn.Conv3d: Conv3d}
_RUN_STOCK: dict[int, Any] = {dims: own._conv_forward for dims, own in enumerate(CONVERTED, 1)}
_STOCK_CLASS = {own: _stock_class_of(converted, own) for own, converted in CONVERTED.items()}
RESTORED = {made: own for classes in (CONVERTED, _STOCK_CLASS) for own, made in classes.items()}


def _choose(
    module: Any, input: Tensor, weight: Tensor, bias: Tensor | None, settings: ConversionSettings
) -> Operands | None:
    """Return the operands of mucudnn's operators, or None for PyTorch's own convolution."""
    if not torch.compiler.is_compiling() and settings.is_inside_stock_step(module):
        return None
    key = _key_of(module, input, weight, bias, settings)
    if settings.leaves_to_pytorch(module, key, input):
        return None
    answer = None if key is None else answers.find(key)  # compiled code has no key
    if answer is not None and not answer.gain:
        return None
    if answer is not None and answer.options is not None and not passes.is_captured(input):
        settings.note_choice(key, answer)
        return Operands(input, weight, bias, answer.options, True, answer.ready)
    if not can_divide(input, weight):
        settings.warn_if_not_kept(input)
        return None
    operands = operands_of(module, input, weight, bias, settings)
    if answer is None and key is not None:
        is_own = operands.are(input, weight, bias)
        answer = decide(key, operands, is_own, settings.sightings, id(module), settings.tune)
    settings.note_choice(key, answer)
    if answer is None:  # the operators measure what is traced, and warn about what fails
        measures = passes.is_followed(input, weight, bias)
        return None if measures and settings.tune == "never" else operands
    return answer.applied(operands) if answer.gain else None


def _key_of(
    module: Any, input: Tensor, weight: Tensor, bias: Tensor | None, settings: ConversionSettings
) -> CallKey | None:
    return answers.key_of(
        input, weight, bias, settings.workspace, settings.key,
        module.stride, module.padding, module.dilation, module.groups, module.padding_mode,
        _has_constant_filter(module, input, weight, settings),
    )  # fmt: skip


def _has_constant_filter(module: Any, input: Tensor, weight: Tensor, settings: ConversionSettings) -> bool:
    """Return whether a call may keep the weight in the algorithms' own form: in eval mode, without gradients.

    A plan says what runs without kept filters. A call in training frees what the weight has kept.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if module.training:
        kept_filters.forget(weight)
        return False
    return (
        not torch.is_grad_enabled()
        and type(weight) is nn.Parameter
        and isinstance(input, Tensor)
        and input.is_cpu
        and settings.handle is None
        and kept_filters.can_keep(weight)
    )


def operands_of(
    module: Any, input: Tensor, weight: Tensor, bias: Tensor | None, settings: ConversionSettings
) -> Operands:
    """Return the operator's arguments for a call to a module, padded here unless its mode is zeros."""
    input, *sizes = _padded(module, input)
    options: Any = {"workspace": settings.workspace, "plan": settings.handle, "fallback": True}
    options["promise"] = settings.promise_text
    if not passes.is_followed(input, weight, bias):
        options["constant_filter"] = _has_constant_filter(module, input, weight, settings)
    return prepare_operands(weight.dim() - 2, input, weight, bias, *sizes, **options)


def why_stock(module: Any, input: Tensor, operands: Operands) -> str | None:
    """Return why PyTorch's own convolution ran a module's call, which has just ended; None if it did not."""
    settings: ConversionSettings = module._mucudnn
    key = _key_of(module, input, module.weight, module.bias, settings)
    if key is None:
        return None
    if settings.comparison is not None and settings.comparison.has_left_to_pytorch(key):
        return STEPS_REASON
    is_own = operands.are(input, module.weight, module.bias)
    answer = answers.find(key) or decide(key, operands, is_own, settings.sightings, id(module), "now")
    return None if answer is None or answer.gain else CALL_REASON


def _run_on_ranks(
    module: Any, input: Any, weight: Tensor, bias: Tensor | None, settings: ConversionSettings
) -> Any:
    """Run a module's convolution on a tensor that is divided over ranks."""
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[weight.dim() - 3]
    input, *sizes = _padded(module, input)
    engine = settings.workspace, settings.handle, settings.promise
    return functional.overridden(function, input, weight, bias, *sizes, *engine)


def _padded(module: Any, input: Any) -> tuple[Any, ...]:
    """Return the input, padded here unless the mode is zeros, and stride, padding, dilation and groups."""
    padding = module.padding
    if module.padding_mode != "zeros":
        around = module._reversed_padding_repeated_twice
        input, padding = nn.functional.pad(input, around, mode=module.padding_mode), 0
    return input, module.stride, padding, module.dilation, module.groups

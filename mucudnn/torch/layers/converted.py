"""The methods that `convert` gives modules, which choose in each call whether mucudnn or PyTorch runs it."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.overrides import TorchFunctionMode

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
from mucudnn.torch.operators.operands import Operands, Sizes, prepare_operands
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


class Call(NamedTuple):
    """A convolution that a module runs, and PyTorch's own way to run it."""

    module: Any
    input: Any
    weight: Tensor
    bias: Tensor | None
    stride: Sizes
    padding: str | Sizes
    dilation: Sizes
    groups: int
    run_stock: Callable[[], Any]


Record = Callable[[Call, Any], None]


class Method:
    """A method in the `__dict__` of one module, which keeps its class, because many tools look at it.

    The method refers to the module weakly, because a cycle would keep the memory of a deleted model until the
    garbage collector runs. Copies and pickles of the module have methods of their own.

    Attributes:
        layer: the identity of the module.
        is_stock: True while PyTorch's own convolutions run the whole step, so that no call looks its answer
            up. In a network, whose data pushes the interpreter's code out of the caches, a look costs 5 to
            24 µs on an EPYC (Zen 3): see `python -m bench run calls`.
        record: a function that gets each convolution and its output, or None.
    """

    is_stock = False
    record: Record | None = None

    def __init__(self, module: Any, settings: ConversionSettings | None) -> None:
        """Make a method that follows the module's settings, if it has any."""
        self._module, self.layer = weakref.ref(module), id(module)
        if settings is not None:
            settings.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        module = self.module()
        return type(self), (module, vars(module).get("_mucudnn"))

    def module(self) -> Any:
        """Return the module. Raises UsageError for a shallow copy of a module that is gone."""
        module = self._module()
        if module is None:
            raise UsageError(
                "this is a shallow copy of a converted module that is gone: call mucudnn.torch.convert(copy)"
            )
        return module

    def run(self, call: Call) -> Any:
        """Run a convolution with mucudnn's operators or with PyTorch's own."""
        output = _run(call)
        if self.record is not None:
            self.record(call, output)
        return output

    def divide_within(self, function: Callable[[], Any]) -> Any:
        """Return the result of a function, whose convolutions run as those of the module."""
        functions = _ConvolutionFunctions(self)
        with functions:
            result = function()
        module = self.module()
        if not functions.calls and not is_dynamo_compiling() and "_mucudnn" in vars(module):
            module._mucudnn.warn_unreached(type(module).__name__)
        return result

    def extra_repr(self) -> str:
        """Return PyTorch's text about the module, with the workspace limit and the plan."""
        module = self.module()
        return f"{type(module).extra_repr(module)}, {module._mucudnn}"

    def refuse_script(self) -> NoReturn:
        """Raise a UsageError with advice: `torch.jit.script` calls this."""
        raise UsageError(
            "torch.jit.script cannot compile a converted model: call mucudnn.torch.restore(model) first, "
            "or use torch.jit.trace"
        )


class ConvForward(Method):
    """The method `_conv_forward`, which PyTorch's own `forward` calls, also one that a subclass calls."""

    def __call__(self, input: Any, weight: Tensor, bias: Tensor | None) -> Any:
        """Run the convolution."""
        # Every line here adds to the cost of every call.
        module = self.module()
        own = type(module)._conv_forward
        if self.is_stock and type(input) is Tensor and not is_dynamo_compiling():
            return own(module, input, weight, bias)
        run_stock = partial(own, module, input, weight, bias)
        if module.padding_mode != "zeros":  # PyTorch pads a copy of the input, and convolves that
            return self.divide_within(run_stock)
        sizes = module.stride, module.padding, module.dilation, module.groups
        return self.run(Call(module, input, weight, bias, *sizes, run_stock))


class SubclassForward(Method):
    """The method `forward` of a subclass that has its own, whose convolutions are reached."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of the forward of the module's class, with its convolutions divided."""
        module = self.module()
        own = partial(type(module).forward, module, *args, **kwargs)
        return own() if self.is_stock and not is_dynamo_compiling() else self.divide_within(own)


class _ConvolutionFunctions(TorchFunctionMode):
    """A mode in which `torch.nn.functional.conv2d` and its siblings run as calls of a module."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self._method, self.calls = method, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch, or the module's settings for a convolution."""
        run_stock = partial(func, *args, **(kwargs or {}))
        if func not in FUNCTIONS:
            return run_stock()
        self.calls += 1
        return self._method.run(_call_of(self._method.module(), run_stock, *args, **(kwargs or {})))


FUNCTIONS = (torch.conv1d, torch.conv2d, torch.conv3d)


def _call_of(
    module: Any, run_stock: Callable[[], Any], input: Any, weight: Any, bias: Any = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Call:  # fmt: skip
    stride, padding, dilation = (tuple(n) if isinstance(n, list) else n for n in (stride, padding, dilation))
    return Call(module, input, weight, bias, stride, padding, dilation, groups, run_stock)


def _run(call: Call) -> Any:
    """Run a convolution as the settings of its module say."""
    # Another thread may restore the module meanwhile.
    settings: ConversionSettings | None = getattr(call.module, "_mucudnn", None)
    if settings is None:
        return call.run_stock()
    if isinstance(call.input, functional.DividedInput):
        return _run_on_ranks(call, settings)
    if (
        is_dynamo_compiling()
        and settings.may_inductor_decide
        and is_left_to_inductor(settings.workspace, call.input.device)
    ):
        return call.run_stock()
    operands = _choose(call, settings)
    return call.run_stock() if operands is None else operands.run()


def _choose(call: Call, settings: ConversionSettings) -> Operands | None:
    """Return the operands of mucudnn's operators, or None for PyTorch's own convolution."""
    module, input, weight, bias, *_ = call
    key = _key_of(call, settings)
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
    operands = operands_of(call, settings)
    if answer is None and key is not None:
        is_own = operands.are(input, weight, bias)
        answer = decide(key, operands, is_own, settings.sightings, id(module), settings.tune)
    settings.note_choice(key, answer)
    if answer is None:  # the operators measure what is traced, and warn about what fails
        measures = passes.is_followed(input, weight, bias)
        return None if measures and settings.tune == "never" else operands
    return answer.applied(operands) if answer.gain else None


def _key_of(call: Call, settings: ConversionSettings) -> CallKey | None:
    is_constant = _has_constant_filter(call, settings)
    return answers.key_of(
        call.input, call.weight, call.bias, settings.workspace, settings.key,
        call.stride, call.padding, call.dilation, call.groups, is_constant,
    )  # fmt: skip


def _has_constant_filter(call: Call, settings: ConversionSettings) -> bool:
    """Return whether a call may keep the weight in the algorithms' own form: in eval mode, without gradients.

    A plan says what runs without kept filters. A call in training frees what the weight has kept.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return False
    if call.module.training:
        kept_filters.forget(call.weight)
        return False
    return (
        not torch.is_grad_enabled()
        and type(call.weight) is nn.Parameter
        and isinstance(call.input, Tensor)
        and call.input.is_cpu
        and settings.handle is None
        and kept_filters.can_keep(call.weight)
    )


def operands_of(call: Call, settings: ConversionSettings) -> Operands:
    """Return the operator's arguments for a call."""
    _, input, weight, bias, *_ = call
    sizes: Any = call[4:-1]
    options: Any = {"workspace": settings.workspace, "plan": settings.handle, "fallback": True}
    options["promise"] = settings.promise_text
    if not passes.is_followed(input, weight, bias):
        options["constant_filter"] = _has_constant_filter(call, settings)
    return prepare_operands(weight.dim() - 2, input, weight, bias, *sizes, **options)


def why_stock(call: Call, operands: Operands) -> str | None:
    """Return why PyTorch's own convolution ran a call, which has just ended; None if it did not."""
    settings: ConversionSettings = call.module._mucudnn
    key = _key_of(call, settings)
    if key is None:
        return None
    if settings.comparison is not None and settings.comparison.has_left_to_pytorch(key):
        return STEPS_REASON
    is_own = operands.are(call.input, call.weight, call.bias)
    layer = id(call.module)
    answer = answers.find(key) or decide(key, operands, is_own, settings.sightings, layer, "now")
    return None if answer is None or answer.gain else CALL_REASON


def _run_on_ranks(call: Call, settings: ConversionSettings) -> Any:
    """Run a convolution on a tensor that is divided over ranks."""
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[call.weight.dim() - 3]
    engine = settings.workspace, settings.handle, settings.promise
    return functional.overridden(function, *call[1:-1], *engine)

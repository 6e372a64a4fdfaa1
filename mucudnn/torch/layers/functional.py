"""`conv1d`, `conv2d` and `conv3d` with the arguments of `torch.nn.functional` and a workspace limit."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from mucudnn.arrays.call import PlanOrPath, limit_of
from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.sizes import spell_limit
from mucudnn.torch.choosing import calls as layers
from mucudnn.torch.operators import passes, stock
from mucudnn.torch.operators.derivatives import convolve
from mucudnn.torch.operators.formats import channels_last
from mucudnn.torch.operators.options import Options, handle_of

Sizes = int | Sequence[int]


Function = TypeVar("Function", bound=Callable[..., Tensor])


def _unscriptable(function: Function) -> Function:
    """Set an attribute that makes `torch.jit.script` raise a UsageError, which says what to do."""

    def refuse() -> NoReturn:
        name = function.__name__
        raise UsageError(
            f"torch.jit.script cannot compile mucudnn.torch.{name}: use torch.nn.functional.{name} there, "
            "or torch.jit.trace"
        )

    function.__prepare_scriptable__ = refuse  # type: ignore[attr-defined]
    return function


class Operands(NamedTuple):
    """The arguments of the operator `forward`.

    `x` has a batch axis; `batched` is False if the caller's input had none. The tensors have the types that
    autocast wants. The padding in `options` is the same on both sides of an axis.
    """

    x: Tensor
    w: Tensor
    bias: Tensor | None
    options: Options
    batched: bool


@_unscriptable
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
) -> Tensor:
    """Return a convolution of signals, (N, C, L) or (C, L); everything else is as in `conv2d`."""
    given = (stride, padding, dilation, groups, workspace, plan)
    if has_torch_function_variadic(input, weight, bias):
        return overridden(conv1d, input, weight, bias, *given)
    return _convolve(1, input, weight, bias, *given)


@_unscriptable
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
) -> Tensor:
    """Return a convolution of images, (N, C, H, W) or (C, H, W), as `torch.nn.functional.conv2d` does.

    `weight` is (K, C / groups, R, S), `bias` is (K) and the result is (N, K, H', W'). `padding` may be
    'valid' or 'same'. Types are f32, f64, f16 and bf16. Memory formats are contiguous and channels_last; a
    tensor in another one is copied. The result and the gradients have the strides that PyTorch's own have.

    The function is differentiable to any order, in reverse and in forward mode. It also works under autocast,
    `torch.compile` and the transforms of `torch.func` (grad, vjp, jvp, vmap, jacrev, jacfwd, hessian). vmap
    runs one larger convolution, and a `plan` must have that kernel. `torch.compile` leaves a transformed call
    uncompiled, and refuses it with fullgraph=True. A Plan must be known before a call with it is compiled:
    make an uncompiled call with it first, or give its path.

    Each pass uses at most `workspace` bytes of scratch memory ("64MiB", "none"), or runs as the `plan` says.
    Without both the limit is MUCUDNN_WORKSPACE_LIMIT, 64 MiB by default. The first call with a shape measures
    the algorithms that fit. That takes seconds, and the cache keeps the measurements. On the CPU the
    convolution uses MUCUDNN_THREADS threads, or else as many as PyTorch (`torch.set_num_threads`).

    Raises UsageError (a ValueError) and ArgumentTypeError (a TypeError) for arguments that make no
    convolution. Raises MixedDevicesError, NoEngineError and NothingFitsError, and NotDifferentiableError for
    a derivative under `torch.func.functionalize`; these are RuntimeErrors. All are MucudnnErrors.
    """
    given = (stride, padding, dilation, groups, workspace, plan)
    if has_torch_function_variadic(input, weight, bias):
        return overridden(conv2d, input, weight, bias, *given)
    return _convolve(2, input, weight, bias, *given)


@_unscriptable
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
) -> Tensor:
    """Return a convolution of volumes, (N, C, D, H, W) or (C, D, H, W); everything else is as in `conv2d`."""
    given = (stride, padding, dilation, groups, workspace, plan)
    if has_torch_function_variadic(input, weight, bias):
        return overridden(conv3d, input, weight, bias, *given)
    return _convolve(3, input, weight, bias, *given)


_STOCK = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}


def _convolve(
    dims: int,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: str | Sizes,
    dilation: Sizes,
    groups: int,
    workspace: int | str | None,
    plan: PlanOrPath | None,
) -> Tensor:
    call = None
    if plan is None and isinstance(x, Tensor) and isinstance(w, Tensor):
        call = layers.call_of(x, w, bias, workspace, dims, stride, padding, dilation, groups)
        decision = None if call is None else layers.decision_of(call)  # compiled code has no call
        if decision is not None:
            if decision.options is None:
                return _STOCK[dims](x, w, bias, stride, padding, dilation, groups)
            return convolve("forward", x, w, bias, decision.options)
    given = operands(dims, x, w, bias, stride, padding, dilation, groups, workspace, plan, fallback=False)
    gain = gain_of(given)
    remember(call, given, gain, x, w, bias)
    if gain != 0:
        return run(given)
    y = stock.forward(given.x, given.w, given.bias, passes.stock_arguments(given.options))
    return y if given.batched else y.squeeze(0)


def remember(
    call: Hashable | None, given: Operands, gain: float | None, x: Tensor, w: Tensor, bias: Tensor | None
) -> None:
    """Keep the decision about a call, so that the next one like it needs neither operands nor a gain.

    A call that is ours is kept only if its operands are its own tensors, neither cast nor padded.
    """
    if gain == 0:
        layers.remember(call, layers.STOCK_CALL)
    elif gain is not None and given.batched and given.x is x and given.w is w and given.bias is bias:
        layers.remember(call, layers.Decision(given.options, gain))


class DividedInput:
    """A base class of inputs of which each rank has a part; `__torch_function__` runs the functions on them.

    Converted modules give such an input to the functions of this module, with their limit and plan. All other
    objects with `__torch_function__` get PyTorch's own functions from them, which are the ones they know.
    """


def overridden(
    function: Any,
    input: Any,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: str | Sizes,
    dilation: Sizes,
    groups: int,
    workspace: int | str | None,
    plan: PlanOrPath | None,
) -> Any:
    """Let the `__torch_function__` of an argument or of a mode run a function of this module."""
    return handle_torch_function(
        function, (input, weight, bias), input, weight, bias, stride, padding, dilation, groups,
        workspace=workspace, plan=plan,
    )  # fmt: skip


def run(given: Operands) -> Tensor:
    """Run the convolution on mucudnn's operators.

    Return its result without a batch axis if the caller's input had none.
    """
    y = convolve("forward", given.x, given.w, given.bias, given.options)
    return y if given.batched else y.squeeze(0)


def runs_stock(given: Operands) -> bool | None:
    """Return whether PyTorch's own operator and autograd run the convolution with all its passes.

    None means that this is not known: see `layers.gain_of`.
    """
    gain = gain_of(given)
    return None if gain is None else gain == 0


def gain_of(given: Operands, tune: str = "eager", module: Hashable = None) -> float | None:
    """Return the gain of mucudnn's operators over PyTorch's own: see `layers.gain_of`."""
    if passes.is_followed(given.x, given.w, given.bias):
        return None
    return layers.gain_of(given.x, given.w, given.bias, given.options, tune, module)


def operands(
    dims: int,
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Sizes,
    padding: str | Sizes,
    dilation: Sizes,
    groups: int,
    workspace: int | str | None,
    plan: PlanOrPath | None,
    *,
    fallback: bool,
) -> Operands:
    """Bring the arguments of `conv1d`, `conv2d` or `conv3d` into the operator's form.

    `dims` is the number of spatial axes. With `fallback` the operator warns and runs PyTorch's own
    convolution instead of raising. Raises UsageError, ArgumentTypeError.
    """
    for name, tensor in (("input", x), ("weight", w)):
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(f"{name} is {type(tensor).__name__}, not a tensor")
        if tensor.layout is not torch.strided:
            raise UsageError(f"{name} is sparse: make it dense with to_dense()")
    if w.dim() != dims + 2 or x.dim() not in (dims + 1, dims + 2):
        raise UsageError(
            f"conv{dims}d takes an input of {dims + 2} axes, or {dims + 1} without the batch, and a weight "
            f"of {dims + 2}: input has {x.dim()}, weight {w.dim()}"
        )
    x, w, bias = autocast(x, w, bias)
    batched = x.dim() == dims + 2
    if not batched:
        x = x.unsqueeze(0)
    strides, dilations = _each("stride", stride, dims), _each("dilation", dilation, dims)
    if padding == "same":
        if any(size != 1 for size in strides):
            raise UsageError(f"padding='same' needs a stride of 1, not {stride}")
        x, paddings = _same(x, w, dilations)
    elif isinstance(padding, str):
        if padding != "valid":
            raise UsageError(f"padding is {padding!r}: there are 'valid' and 'same', and numbers")
        paddings = (0,) * dims
    else:
        paddings = _each("padding", padding, dims)
    if bias is not None and not fallback:
        passes.check_bias(bias, w)
    exact = passes.is_plain(x) and passes.is_plain(w) and not torch.compiler.is_compiling()
    last = channels_last(x, w, bias, strides, paddings, dilations, groups, exact=exact)
    options = Options(
        strides, paddings, dilations, groups, last, spelled(workspace), handle_of(plan), fallback
    )
    return Operands(x, w, bias, options, batched)


def spelled(workspace: int | str | None) -> str | None:
    """Return a limit as text, which the operator takes. Raises UsageError, ArgumentTypeError."""
    return None if workspace is None else spell_limit(limit_of(workspace))


def _each(name: str, value: Sizes, dims: int) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(sizes) == 1:
        return sizes * dims
    if len(sizes) != dims:
        raise UsageError(f"{name} has {len(sizes)} sizes, the input has {dims} spatial axes")
    return sizes


def _same(x: Tensor, w: Tensor, dilation: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Return the input and the padding for each side of an axis, such that the output has the input's size.

    If the total along an axis is odd, the input is copied with one more zero at the end.
    """
    total = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
    if any(size % 2 for size in total):
        x = torch.nn.functional.pad(x, [pad for size in reversed(total) for pad in (0, size % 2)])
    return x, tuple(size // 2 for size in total)


def autocast(x: Tensor, w: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cast the tensors, except f64 ones, to the type of autocast, as PyTorch does for its convolutions."""
    kind = x.device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return x, w, bias
    dtype = torch.get_autocast_dtype(kind)

    def cast(tensor: Tensor) -> Tensor:
        eligible = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return tensor.to(dtype) if eligible else tensor

    return cast(x), cast(w), None if bias is None else cast(bias)

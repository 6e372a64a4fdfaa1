"""`conv1d`, `conv2d` and `conv3d` with the arguments of `torch.nn.functional`, and a limit."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, TypeVar

import torch
from torch import Tensor

from mucudnn.arrays.dispatch import PlanOrPath, limit_of
from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.sizes import spell_limit
from mucudnn.torch import ops
from mucudnn.torch.derivatives import convolve
from mucudnn.torch.formats import channels_last
from mucudnn.torch.options import Options, handle_of

Sizes = int | Sequence[int]


Function = TypeVar("Function", bound=Callable[..., Tensor])


def _unscriptable(function: Function) -> Function:
    """Let `torch.jit.script` say what to do where a function is called; it asks for this attribute."""

    def refuse() -> NoReturn:
        name = function.__name__
        raise UsageError(
            f"torch.jit.script cannot compile mucudnn.torch.{name}: use torch.nn.functional.{name} there, "
            "or torch.jit.trace"
        )

    function.__prepare_scriptable__ = refuse  # type: ignore[attr-defined]
    return function


class Operands(NamedTuple):
    """Arguments of the operator: batched, of the types that autocast wants, padded alike on both sides."""

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
    """A convolution of signals, (N, C, L) or (C, L); everything else is as in `conv2d`."""
    given = (stride, padding, dilation, groups, workspace, plan)
    return run(operands(1, input, weight, bias, *given, fallback=False))


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
    """A convolution of images, (N, C, H, W) or (C, H, W), as `torch.nn.functional.conv2d` gives it.

    `weight` is (K, C / groups, R, S), `bias` (K), the result (N, K, H', W'); `padding` may be 'valid' or
    'same'. Types are f32, f64, f16 and bf16, memory formats contiguous and channels_last; what is neither
    is copied. The result and the gradients have the strides that PyTorch's own have.

    Differentiable to any order, in reverse and in forward mode, also under autocast, `torch.compile` and the
    transforms of `torch.func` (grad, vjp, jvp, vmap, jacrev, jacfwd, hessian). vmap runs one larger
    convolution, for which a `plan` must have a kernel. `torch.compile` leaves a transformed call uncompiled,
    and refuses it with fullgraph=True. A plan that is not given by its path must be known before it is
    compiled, as `convert` does.

    Each pass uses at most `workspace` bytes of scratch memory ("64MiB", "none"; without it
    MUCUDNN_WORKSPACE_LIMIT holds, 64 MiB by default), or runs as the `plan` says. The first call for a
    shape measures what fits, which takes seconds and is kept in the cache. On the CPU they run on
    MUCUDNN_THREADS threads, or else on as many as PyTorch's own (`torch.set_num_threads`).

    Raises UsageError (a ValueError), ArgumentTypeError (a TypeError), MixedDevicesError, NoEngineError,
    NothingFitsError and, for a derivative together with `torch.func.functionalize`, NotDifferentiableError
    (RuntimeErrors); all are MucudnnErrors.
    """
    given = (stride, padding, dilation, groups, workspace, plan)
    return run(operands(2, input, weight, bias, *given, fallback=False))


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
    """A convolution of volumes, (N, C, D, H, W) or (C, D, H, W); everything else is as in `conv2d`."""
    given = (stride, padding, dilation, groups, workspace, plan)
    return run(operands(3, input, weight, bias, *given, fallback=False))


def run(given: Operands) -> Tensor:
    """Run the convolution; leave the batch axis away where the input had none."""
    tensors = given.x, given.w, given.bias
    if not ops.is_watched(*tensors):
        y = ops.run_forward(*tensors, *given.options)
    else:
        y = convolve("forward", *tensors, given.options)
    return y if given.batched else y.squeeze(0)


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

    Raises UsageError, ArgumentTypeError.
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
    x, w, bias = _autocast(x, w, bias)
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
        ops.check_bias(bias, w)
    exact = ops.is_plain(x) and ops.is_plain(w) and not torch.compiler.is_compiling()
    last = channels_last(x, w, bias, strides, paddings, dilations, groups, exact=exact)
    options = Options(
        strides, paddings, dilations, groups, last, spelled(workspace), handle_of(plan), fallback
    )
    return Operands(x, w, bias, options, batched)


def spelled(workspace: int | str | None) -> str | None:
    """A limit as the operator takes it: text. Raises UsageError, ArgumentTypeError."""
    return None if workspace is None else spell_limit(limit_of(workspace))


def _each(name: str, value: Sizes, dims: int) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(sizes) == 1:
        return sizes * dims
    if len(sizes) != dims:
        raise UsageError(f"{name} has {len(sizes)} sizes, the input has {dims} spatial axes")
    return sizes


def _same(x: Tensor, w: Tensor, dilation: tuple[int, ...]) -> tuple[Tensor, tuple[int, ...]]:
    """Half of the padding on each side; what is odd goes behind, for which the input is copied."""
    total = [d * (k - 1) for d, k in zip(dilation, w.shape[2:], strict=True)]
    if any(size % 2 for size in total):
        x = torch.nn.functional.pad(x, [pad for size in reversed(total) for pad in (0, size % 2)])
    return x, tuple(size // 2 for size in total)


def _autocast(x: Tensor, w: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What autocast does with convolutions: all but f64 runs in its type."""
    kind = x.device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return x, w, bias
    dtype = torch.get_autocast_dtype(kind)

    def cast(tensor: Tensor) -> Tensor:
        eligible = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return tensor.to(dtype) if eligible else tensor

    return cast(x), cast(w), None if bias is None else cast(bias)

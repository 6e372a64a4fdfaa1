"""The three passes as operators of PyTorch: the gradients of each are the others, to any order.

Their arguments are plain values, so that compilers see through them: a plan goes by its path, or by the
handle under which this process knows it.
"""

import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from mucudnn import settings
from mucudnn._native import EngineError
from mucudnn.arrays import views as arrays
from mucudnn.arrays.dispatch import Call, PlanOrPath, Prepared, known_plan, prepared
from mucudnn.arrays.views import View
from mucudnn.errors import MucudnnError, NotDifferentiableError, UsageError
from mucudnn.plans.plan import Plan

Ints = Sequence[int]
_SCHEMA = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, bool channels_last, "
    "str? workspace, str? plan, bool fallback"
)
_PLAIN = (Tensor, torch.nn.Parameter)
_FAILURES = (MucudnnError, EngineError, MemoryError)  # after which PyTorch's own operator may still run
_plans: dict[str, Plan] = {}  # by their handles, which compiled functions keep


class Options(NamedTuple):
    """What all passes of a convolution share; sizes count one for each spatial dimension."""

    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int
    channels_last: bool  # in memory; the axes of tensors have the channels second
    workspace: str | None
    plan: str | None
    fallback: bool  # to PyTorch's own, with a warning, rather than raise; and from the plan to the workspace


def handle_of(plan: PlanOrPath | None) -> str | None:
    """A name that the operators take for a plan; a path is one already. Raises MucudnnError."""
    if plan is None or isinstance(plan, str):
        return plan
    known = known_plan(plan)
    handle = f"plan:{known.digest}"
    _plans.setdefault(handle, known)
    return handle


def call_of(
    pass_: str,
    view: View,
    x: tuple[int, ...],
    w: tuple[int, ...],
    y: tuple[int, ...] | None,
    options: Options,
) -> Call:
    """The call; of x, w and y the shapes with the channels where they are in memory."""
    return Call(
        pass_, view.device, view.data_type, "nhwc" if options.channels_last else "nchw", x, w, y,
        tuple(options.stride), tuple(options.padding), tuple(options.dilation), options.groups,
        options.workspace, _math(view.data_type) if view.device.startswith("cuda") else "default",
        _wanted_threads() or torch.get_num_threads() if view.device == "cpu" else None,
    )  # fmt: skip


@cache  # as asking for a variable at every call takes longer than all else here
def _wanted_threads() -> int | None:
    """MUCUDNN_THREADS, where it is set. Raises UsageError."""
    threads: int | None = settings.THREADS.read() if os.environ.get(settings.THREADS.variable) else None
    return threads


def _math(data_type: str) -> str:
    """What PyTorch itself would allow on a GPU. Raises UsageError."""
    if torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
        raise UsageError("PyTorch was told to be deterministic, which is not chosen for on a GPU yet")
    if data_type != "f32":  # whose tensor cores nothing switches off
        return "default"
    try:
        allowed = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # by its newer flags, not the same for convolutions and for what else there is
        allowed = torch.backends.cudnn.conv.fp32_precision == "tf32"
    return "tf32" if allowed else "strict"


def view_of(tensor: Tensor, name: str, channels_last: bool) -> View:
    """The tensor, or a copy where it is not packed in that order. Raises MucudnnError."""
    if channels_last:
        packed = tensor.contiguous(memory_format=_format(tensor.dim(), channels_last))
        return arrays.read_tensor(packed.permute(0, *range(2, tensor.dim()), 1), name)
    return arrays.read_tensor(tensor.contiguous(), name)


def is_plain(tensor: Tensor) -> bool:
    """Whether it is a tensor with memory of its own, and of no subclass that has its own operators."""
    return type(tensor) in _PLAIN and not tensor.is_meta


@torch.compiler.assume_constant_result  # which a compiler asks for where it traces the transform
def is_transformed() -> bool:
    """Whether a transform of functions (vmap, jvp) or forward-mode differentiation looks on."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def check_tangents(*tensors: Tensor | None) -> None:
    """Raise NotDifferentiableError where one has a tangent of forward mode, which PyTorch would drop."""
    if not is_transformed():
        return
    for tensor in tensors:
        if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
            raise NotDifferentiableError(
                "mucudnn.torch has no derivatives of forward mode (jvp, duals): use torch.nn.functional"
            )


def is_watched(x: Tensor, w: Tensor, bias: Tensor | None) -> bool:
    """Whether a call must go through the operator, for autograd, a compiler, a tracer, a mode or a transform.

    Where nobody looks, `run_forward` alone spares 15 µs.
    """
    tensors = (x, w) if bias is None else (x, w, bias)
    return (
        torch.compiler.is_compiling()
        or not all(is_plain(tensor) and tensor.is_cpu for tensor in tensors)
        or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        or is_in_torch_dispatch_mode()
        or is_transformed()
        or torch.jit.is_tracing()
    )


def run_forward(x: Tensor, w: Tensor, bias: Tensor | None, *given: Any) -> Tensor:
    """What the operator `forward` runs; `given` are the Options."""
    options = Options(*given)
    try:
        vx, vw = _views("x", x, "w", w, options.channels_last)
        ready = _ready(call_of("forward", vx, vx.shape, vw.shape, None, options), options, vx.stream)
        y = _empty(_in_order(ready.shapes["y"], options.channels_last), x, options.channels_last)
        if bias is not None:  # added by the convolution itself, so that 16-bit results are rounded once
            _check_bias(bias, vx, w)
            y.copy_(bias.view(1, -1, *(1,) * (y.dim() - 2)))
        ready.run(vx.address, vw.address, y.data_ptr(), 1.0, 0.0 if bias is None else 1.0, vx.stream, x)
        return y
    except _FAILURES as error:
        _give_way(error, options)
        return _kept(torch.ops.aten.convolution(x, w, bias, *_stock(options)), options)


def _backward_data(dy: Tensor, w: Tensor, input_shape: Ints, *given: Any) -> Tensor:
    options = Options(*given)
    try:
        vdy, vw = _views("dy", dy, "w", w, options.channels_last)
        x_shape = _in_memory(input_shape, options.channels_last)
        call = call_of("backward_data", vdy, x_shape, vw.shape, vdy.shape, options)
        ready = _ready(call, options, vdy.stream)
        dx = _empty(input_shape, dy, options.channels_last)
        ready.run(dx.data_ptr(), vw.address, vdy.address, stream=vdy.stream, owner=dy)
        return dx
    except _FAILURES as error:
        _give_way(error, options)
        x, mask = dy.new_empty(1).expand(input_shape), [True, False, False]  # of x only the shape is read
        return _kept(torch.ops.aten.convolution_backward(dy, x, w, None, *_stock(options), mask)[0], options)


def _backward_filter(x: Tensor, dy: Tensor, filter_shape: Ints, *given: Any) -> Tensor:
    options = Options(*given)
    try:
        vx, vdy = _views("x", x, "dy", dy, options.channels_last)
        w_shape = _in_memory(filter_shape, options.channels_last)
        call = call_of("backward_filter", vx, vx.shape, w_shape, vdy.shape, options)
        ready = _ready(call, options, vx.stream)
        dw = _empty(filter_shape, x, options.channels_last)
        ready.run(vx.address, dw.data_ptr(), vdy.address, stream=vx.stream, owner=x)
        return dw
    except _FAILURES as error:
        _give_way(error, options)
        w, mask = x.new_empty(1).expand(filter_shape), [False, True, False]
        return _kept(torch.ops.aten.convolution_backward(dy, x, w, None, *_stock(options), mask)[1], options)


def _views(
    name: str, tensor: Tensor, other_name: str, other: Tensor, channels_last: bool
) -> tuple[View, View]:
    one, two = view_of(tensor, name, channels_last), view_of(other, other_name, channels_last)
    arrays.check_same(name, one, other_name, two)
    return one, two


def _check_bias(bias: Tensor, x: View, w: Tensor) -> None:
    arrays.check_same("x", x, "bias", arrays.read_tensor(bias.contiguous(), "bias"))
    if bias.shape != w.shape[:1]:
        raise UsageError(
            f"bias has the shape {tuple(bias.shape)}, one for each of {w.shape[0]} filters is due"
        )


def _ready(call: Call, options: Options, stream: int) -> Prepared:
    plan = None if options.plan is None else _plans.get(options.plan, options.plan)
    return prepared(call, plan, stream=stream, only_plan=not options.fallback)


def _give_way(error: Exception, options: Options) -> None:
    if not options.fallback:
        raise error
    warnings.warn(f"mucudnn leaves a convolution to PyTorch: {error}", RuntimeWarning, stacklevel=4)


def _stock(options: Options) -> tuple[Any, ...]:
    """Arguments of PyTorch's own operators; not transposed."""
    return options.stride, options.padding, options.dilation, False, [0] * len(options.stride), options.groups


def _format(dims: int, channels_last: bool) -> Any:
    if not channels_last:
        return torch.contiguous_format
    return torch.channels_last if dims == 4 else torch.channels_last_3d


def _empty(shape: Ints, like: Tensor, channels_last: bool) -> Tensor:
    memory_format = _format(len(shape), channels_last)
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory_format)


def _kept(result: Tensor, options: Options) -> Tensor:
    return result.contiguous(memory_format=_format(result.dim(), options.channels_last))


def _in_memory(shape: Ints, channels_last: bool) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if channels_last else tuple(shape)


def _in_order(shape: Ints, channels_last: bool) -> tuple[int, ...]:
    return (shape[0], shape[-1], *shape[1:-1]) if channels_last else tuple(shape)


def _fake_forward(x: Tensor, w: Tensor, bias: Tensor | None, *given: Any) -> Tensor:
    options = Options(*given)
    spatial = zip(x.shape[2:], w.shape[2:], options.stride, options.padding, options.dilation, strict=True)
    output = [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in spatial]
    return _empty((x.shape[0], w.shape[0], *output), x, options.channels_last)


def _fake_backward(first: Tensor, second: Tensor, shape: Ints, *given: Any) -> Tensor:
    return _empty(shape, first, Options(*given).channels_last)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, _, *given = inputs
    ctx.save_for_backward(first, second)
    ctx.options = Options(*given)


def _forward_gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    return (
        backward_data(g, w, x.shape, *ctx.options) if ctx.needs_input_grad[0] else None,
        backward_filter(x, g, w.shape, *ctx.options) if ctx.needs_input_grad[1] else None,
        g.sum([0, *range(2, g.dim())]) if ctx.needs_input_grad[2] else None,
        *(None for _ in Options._fields),
    )


def _backward_data_gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    dy, w = ctx.saved_tensors
    return (
        forward(g, w, None, *ctx.options) if ctx.needs_input_grad[0] else None,
        backward_filter(g, dy, w.shape, *ctx.options) if ctx.needs_input_grad[1] else None,
        None,
        *(None for _ in Options._fields),
    )


def _backward_filter_gradients(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    x, dy = ctx.saved_tensors
    return (
        backward_data(dy, g, x.shape, *ctx.options) if ctx.needs_input_grad[0] else None,
        forward(x, g, None, *ctx.options) if ctx.needs_input_grad[1] else None,
        None,
        *(None for _ in Options._fields),
    )


_library = torch.library.Library("mucudnn", "DEF")


def _on_device_of_tensors(run: Any) -> Any:
    def guarded(first: Tensor, *others: Any) -> Tensor:
        with torch.cuda.device(first.device) if first.is_cuda else nullcontext():
            result: Tensor = run(first, *others)
        return result

    return guarded


def _operator(name: str, schema: str, run: Any, fake: Any, gradients: Any) -> Any:
    """As `torch.library.custom_op` makes it, without the 20 µs of its checks at every call."""
    qualified = f"mucudnn::{name}"
    _library.define(f"{name}({schema}, {_SCHEMA}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
    _library.impl(name, _on_device_of_tensors(run), "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, fake, lib=_library)
    torch.library.register_autograd(qualified, gradients, setup_context=_save, lib=_library)
    return getattr(torch.ops.mucudnn, name).default


forward = _operator(
    "convolution_forward", "Tensor x, Tensor w, Tensor? bias", run_forward, _fake_forward, _forward_gradients
)
backward_data = _operator(
    "convolution_backward_data",
    "Tensor dy, Tensor w, SymInt[] input_shape",
    _backward_data,
    _fake_backward,
    _backward_data_gradients,
)
backward_filter = _operator(
    "convolution_backward_filter",
    "Tensor x, Tensor dy, SymInt[] filter_shape",
    _backward_filter,
    _fake_backward,
    _backward_filter_gradients,
)

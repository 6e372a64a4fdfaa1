"""The three passes on PyTorch's tensors: prepare a call, and run it on the engine or by PyTorch's operator.

These functions have no gradients: see `derivatives`.
"""

import warnings
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mucudnn import settings
from mucudnn._native import EngineError
from mucudnn.arrays import views as arrays
from mucudnn.arrays.call import PassCall, by_role
from mucudnn.arrays.dispatch import Prepared, prepared
from mucudnn.arrays.views import View
from mucudnn.errors import MucudnnError, MucudnnWarning, UsageError
from mucudnn.promises import STRICT, promise_named
from mucudnn.torch.operators import kept_filters, stock
from mucudnn.torch.operators.formats import strides
from mucudnn.torch.operators.options import Ints, Options, plan_of
from mucudnn.torch.private import has_storage, is_in_torch_dispatch_mode, is_transformed, keep_result

PLAIN = (Tensor, torch.nn.Parameter)
_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_CHANNELS_BEHIND = {3: (0, 2, 1), 4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}  # number of axes -> permutation
FAILURES = (MucudnnError, EngineError, MemoryError)  # PyTorch's own operator may still run after these


def call_of(
    pass_: str,
    view: View,
    x: tuple[int, ...],
    w: tuple[int, ...],
    y: tuple[int, ...] | None,
    options: Options,
) -> PassCall:
    """Return the call of a pass. `x`, `w` and `y` are shapes with the axes in the order of memory.

    All tensors have the device and the data type of `view`. Raises UsageError.
    """
    promise, math, deterministic = promise_named(options.promise), "default", False
    if view.device != "cpu":
        math = math_of(view.data_type)
        deterministic = torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled()
    return PassCall(
        pass_, view.device, view.data_type, "nhwc" if options.channels_last else "nchw", x, w, y,
        tuple(options.stride), tuple(options.padding), tuple(options.dilation), options.groups,
        options.workspace, STRICT if promise.is_strict else math,
        host_threads() if view.device == "cpu" else None, promise, deterministic,
        options.constant_filter and view.device == "cpu" and pass_ == "forward",
    )  # fmt: skip


def host_threads() -> int:
    """Return the number of threads on which the host engine runs. Raises UsageError."""
    return _wanted_threads() or torch.get_num_threads()


@cache  # reading the variable takes longer than the rest of `call_of`
def _wanted_threads() -> int | None:
    """Return the value of MUCUDNN_THREADS, or None if it is not set. Raises UsageError."""
    threads: int | None = settings.THREADS.read()
    return threads


def math_of(data_type: str) -> str:
    """Return the math mode that PyTorch's flags allow on a GPU: `default`, `tf32` or `fma`."""
    if data_type != "f32":  # PyTorch has no flag to disable tensor cores for other types
        return "default"
    try:
        allowed = torch.backends.cudnn.allow_tf32
    except RuntimeError:  # PyTorch's newer flags differ for convolutions and for RNNs
        allowed = torch.backends.cudnn.conv.fp32_precision == "tf32"
    return "tf32" if allowed else "fma"


def view_of(tensor: Tensor, name: str, options: Options) -> View:
    """Return a view of the tensor, or of a packed copy if the engine cannot read the tensor's strides.

    Errors call the tensor `name`. Raises MucudnnError.
    """
    if options.channels_last:
        tensor = tensor.permute(_CHANNELS_BEHIND[tensor.dim()])
    return arrays.read_tensor(tensor.contiguous(), name)


def on_device_of(tensor: Tensor) -> Any:
    """Return a context in which the device of a CUDA tensor is the current device."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def is_captured(tensor: Tensor) -> bool:
    """Return whether a CUDA graph captures what runs on the tensor now."""
    return tensor.is_cuda and bool(torch.cuda.is_current_stream_capturing())


def needed_passes(x: Tensor, w: Tensor) -> list[str]:
    """Return `forward`, and the backward passes whose gradients are enabled and needed."""
    needed = ["forward"]
    if torch.is_grad_enabled():
        needed += ["backward_data"] * x.requires_grad + ["backward_filter"] * w.requires_grad
    return needed


def is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor has memory and is not of a subclass, which may redefine operators."""
    return type(tensor) in PLAIN and not tensor.is_meta


def can_divide(input: Tensor, weight: Tensor) -> bool:
    """Return whether a convolution looks divisible; preparing or running it may still fail.

    A convolution that a CUDA graph captures is not divisible, because the graph would keep the address of
    mucudnn's workspace. Neither is a convolution inside a transform of `torch.func`, which only PyTorch's own
    operators follow.
    """
    if torch.jit.is_tracing() and torch.onnx.is_in_onnx_export():
        return False
    unknown_sizes = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return (
        all(
            is_plain(tensor)
            and tensor.layout is torch.strided
            and not tensor.is_nested
            and (tensor.is_cpu or tensor.is_cuda)
            and tensor.dtype in _TYPES
            and (unknown_sizes or tensor.numel() > 0)
            for tensor in (input, weight)
        )
        and weight.dim() - input.dim() in (0, 1)  # 1: the input has no batch axis
        and not is_transformed()
        and (torch.compiler.is_compiling() or not is_captured(input))
    )


@keep_result
def warn_if_not_kept(promise: str | None) -> bool:
    """Warn that PyTorch itself runs a convolution and does not keep a promise, if the call has one.

    While a compiler traces the call, this warns once about all calls of the compiled code.
    """
    if kept := str(promise_named(promise)):
        text = f"PyTorch itself runs a convolution, whose result does not promise '{kept}'"
        warnings.warn(text, MucudnnWarning, stacklevel=3)
    return True


def is_followed(first: Tensor, second: Tensor, third: Any) -> bool:
    """Return whether a compiler, a tracer, a mode or a transform follows a pass, not only autograd."""
    tensors = (first, second, third) if isinstance(third, Tensor) else (first, second)
    return (
        torch.compiler.is_compiling()
        or not all(is_plain(tensor) and has_storage(tensor) for tensor in tensors)
        or is_in_torch_dispatch_mode()
        or is_transformed()
        or torch.jit.is_tracing()
    )


def run(
    pass_: str, first: Tensor, second: Tensor, third: Any, options: Options, ready: Prepared | None = None
) -> Tensor:
    """Run a pass on the device of its tensors. `third` is the bias or None, or the shape of a gradient.

    The results are y, (N, K, ...); dx, (N, C, ...), for dy and w; and dw, (K, C / groups, ...), for x and dy.
    `ready` is the division of the pass, if the caller knows it. If the pass fails, warn and return PyTorch's
    own result, or without `fallback` raise MucudnnError, EngineError or MemoryError. If PyTorch refuses the
    call too, its error is enough, because the program is wrong.
    """
    try:
        with on_device_of(first):
            if pass_ == "forward":
                return _run_forward(first, second, third, options, ready)
            return _run_backward(pass_, first, second, third, options, ready)
    except FAILURES as error:
        if not options.fallback:
            raise
        result = run_stock(pass_, first, second, third, options)
        warnings.warn(f"mucudnn leaves a convolution to PyTorch: {error}", MucudnnWarning, stacklevel=2)
        return result


def _run_forward(
    x: Tensor, w: Tensor, bias: Tensor | None, options: Options, ready: Prepared | None
) -> Tensor:
    vx, vw = views("x", x, "w", w, options)
    if ready is None:
        ready = ready_of(call_of("forward", vx, vx.shape, vw.shape, None, options), options, vx.stream)
    if ready.is_stock:
        return run_stock("forward", x, w, bias, options)
    shape, last = ready.shapes["y"], bool(options.channels_last)
    y = empty_result((shape[0], shape[-1], *shape[1:-1]) if last else shape, x, last)
    beta, bias_address = 0.0, 0
    if bias is not None:
        check_bias(bias, w)
        packed = bias.contiguous()  # a name of its own keeps a copy alive during the run
        arrays.check_same("x", vx, "bias", arrays.read_tensor(packed, "bias"))
        if x.is_cpu:
            bias_address = packed.data_ptr()
        else:  # beta=1 adds to the bias in y, so that a 16-bit result is rounded only once
            y.copy_(packed.view(1, -1, *(1,) * (y.dim() - 2)))
            beta = 1.0
    if ready.own:
        kept = kept_filters.find(w, vw.address, ready) if ready.call.constant_filter else None
        ready.run(vx.address, vw.address, y.data_ptr(), 1.0, beta, vx.stream, x, kept, bias_address)
    if ready.stock:
        stock.run_slices("forward", ready.stock, ready.own, (x, w, y), stock_arguments(options), bias)
    return _restrided(y, "y", options)


def _run_backward(
    pass_: str, first: Tensor, second: Tensor, shape: Ints, options: Options, ready: Prepared | None
) -> Tensor:
    role, *names = ("x", "dy", "w") if pass_ == "backward_data" else ("w", "x", "dy")
    view, other = views(names[0], first, names[1], second, options)
    last = bool(options.channels_last)
    if ready is None:
        shapes = by_role(pass_, view.shape, other.shape, in_memory(shape, last))
        ready = ready_of(call_of(pass_, view, *shapes, options), options, view.stream)
    if ready.is_stock:
        return run_stock(pass_, first, second, shape, options)
    result = empty_result(shape, first, last)
    if ready.own:
        x, w, y = by_role(pass_, view.address, other.address, result.data_ptr())
        ready.run(x, w, y, stream=view.stream, owner=first)
    if ready.stock:
        tensors = by_role(pass_, first, second, result)
        stock.run_slices(pass_, ready.stock, ready.own, tensors, stock_arguments(options))
    return _restrided(result, role, options)


def run_stock(pass_: str, first: Tensor, second: Tensor, third: Any, options: Options) -> Tensor:
    """Run a pass by PyTorch's own operator, with `run`'s arguments and the strides of its result."""
    arguments = stock_arguments(options)
    if pass_ == "forward":
        if third is not None and third.dtype is not first.dtype:  # only some processors' operators refuse it
            raise RuntimeError(f"Input type ({first.dtype}) and bias type ({third.dtype}) should be the same")
        y = stock.forward(first, second, third, arguments)
        return _with_strides(y, "y" in options.channels_last)
    is_last = ("x" if pass_ == "backward_data" else "w") in options.channels_last
    like = stock.placeholder(third, first, is_last)
    tensors = by_role(pass_, first, second, like)
    return _with_strides(stock.run_whole(pass_, *tensors, arguments), is_last)


def views(name: str, tensor: Tensor, other_name: str, other: Tensor, options: Options) -> tuple[View, View]:
    """Return the views of two tensors of a pass, which have one type and device. Raises MucudnnError."""
    view, other_view = view_of(tensor, name, options), view_of(other, other_name, options)
    arrays.check_same(name, view, other_name, other_view)
    return view, other_view


def check_bias(bias: Tensor, w: Tensor) -> None:
    """Raise UsageError for a bias of another shape than (K)."""
    if bias.shape != w.shape[:1]:
        raise UsageError(
            f"bias has the shape {tuple(bias.shape)}: it needs one value for each of {w.shape[0]} filters"
        )


def ready_of(call: PassCall, options: Options, stream: int, *, may_measure: bool = True) -> Prepared:
    """Return the prepared division of a call, some slices of which STOCK may run. Raises MucudnnError."""
    return prepared(
        call, plan_of(options.plan), stream=stream, only_plan=not options.fallback,
        source=stock.source_of(call.device), may_measure=may_measure,
    )  # fmt: skip


def stock_arguments(options: Options) -> tuple[Any, ...]:
    """Return the arguments that PyTorch's own operators take from stride to groups, not transposed."""
    return options.stride, options.padding, options.dilation, False, [0] * len(options.stride), options.groups


def empty_result(shape: Ints, like: Tensor, channels_last: bool) -> Tensor:
    """Return a new tensor (N, C, ...) in a memory format, with the type and the device of `like`."""
    if not channels_last:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if len(shape) == 3:
        return torch.empty_strided(shape, strides(shape, True), dtype=like.dtype, device=like.device)
    memory_format = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory_format)


def _restrided(result: Tensor, role: str, options: Options) -> Tensor:
    """Return the engine's result with the strides that PyTorch gives to this role ("x", "w" or "y").

    The engine has one layout for all tensors of a call, while PyTorch may choose one for each result.
    """
    due = role in options.channels_last
    return result if due == bool(options.channels_last) else _with_strides(result, due)


def _with_strides(result: Tensor, channels_last: bool) -> Tensor:
    """Return the result, or a copy if it is not in the requested memory format and has one."""
    shape = result.shape
    if is_transformed() or result.stride() == strides(shape, channels_last):
        return result
    return empty_result(shape, result, channels_last).copy_(result)


def in_memory(shape: Ints, channels_last: bool) -> tuple[int, ...]:
    """Return the shape of a tensor (N, C, ...) with its axes in the order of memory."""
    return (shape[0], *shape[2:], shape[1]) if channels_last else tuple(shape)

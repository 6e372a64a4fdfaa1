"""PyTorch's operators for CUDA, except cuDNN's convolutions, computed on the CPU in the device's memory.

The device's memory is the host's (build.py), so a CPU tensor can use it too.
"""

import atexit
import ctypes
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

# Operators that allocate memory or change a tensor's description. PyTorch's own versions work here.
_OWN = ("empty", "resize", "set_", "record_stream", "cudnn_", "_cudnn")
_library = torch.library.Library("aten", "IMPL")
_kept: list[Tensor] = []  # a graph that lives until the process ends
_late: ctypes.CDLL | None = None  # the runtime while its streams are late


@contextmanager
def late_streams() -> Iterator[None]:
    """Return a context in which asynchronous copies on side streams run when something waits for them."""
    global _late
    runtime = ctypes.CDLL("libcudart.so.13")
    address = ctypes.c_void_p
    runtime.standInCopy.argtypes = [address, address, ctypes.c_size_t, address, address, address]
    runtime.standInCatchUp.argtypes = [address]
    runtime.standInUse.argtypes = [address, ctypes.c_int, address]
    runtime.standInSwitchLate(1)
    _late = runtime
    try:
        yield
    finally:
        _late = None
        runtime.standInSwitchLate(0)


def install() -> None:
    """Replace the operators for the rest of the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch warns of each replacement
        for name in torch._C._dispatch_get_all_op_names():
            namespace, _, operator = name.partition("::")
            if namespace == "aten" and _is_replaced(name, operator):
                packet, _, overload = operator.partition(".")
                function = getattr(getattr(torch.ops.aten, packet), overload or "default")
                if not any(_is_view(argument) for argument in function._schema.arguments):
                    _library.impl(operator, _on_cpu(function), "CUDA")
        _library.impl("copy_", _copy, "CUDA")
        _library.impl(
            "_copy_from", lambda source, to, non_blocking=False: _copy(to, source, non_blocking), "CUDA"
        )
        _library.impl("_conv_depthwise2d", _depthwise, "CUDA")
        _library.impl("convolution_backward", _convolution_backward, "CUDA")
        for name, function in ("", _attention), ("_backward", _attention_backward):
            _library.impl(f"_scaled_dot_product_efficient_attention{name}", function, "CUDA")
        _library.impl("cudnn_batch_norm", _batch_norm, "CUDA")
        _library.impl("cudnn_batch_norm_backward", _batch_norm_backward, "CUDA")
    atexit.register(_outlast_backward)


def _outlast_backward() -> None:
    """Wait until PyTorch's thread for backward passes has dropped the tensors of the last one.

    It drops them after the program goes on. If Python ends meanwhile, PyTorch aborts the process, because it
    waits for Python's lock in a destructor (pytorch/pytorch#190489).
    """
    if torch.cuda.is_initialized():
        _kept.append(torch.ones(1, device="cuda", requires_grad=True).sum())
        _kept[0].backward()  # the same thread runs this, and drops no tensor while the graph lives


def _is_replaced(name: str, operator: str) -> bool:
    def has(key: str) -> bool:
        is_present: bool = torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
        return is_present

    return has("CUDA") and (has("CPU") or operator.startswith("_foreach")) and not operator.startswith(_OWN)


def _is_view(argument: Any) -> bool:
    return argument.alias_info is not None and not argument.alias_info.is_write


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the operator on CPU tensors in the same memory. Its new tensors are copied to the device."""

    def call(*arguments: Any, **options: Any) -> Any:
        _catch_up()
        pairs: list[tuple[Tensor, Tensor]] = []

        def in_place(value: Any) -> Any:
            if isinstance(value, Tensor) and value.is_cuda:
                pairs.append((value, _cpu_alias(value)))
                return pairs[-1][1]
            if isinstance(value, torch.device):
                return torch.device("cpu")
            return None if isinstance(value, torch.Generator) else value

        def back(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            for own, alias in pairs:
                if alias is value:
                    _note_use(own, True)
                    return own
            return _to_device(value)

        arguments, options = tree_map(in_place, (arguments, options))
        result = function(*arguments, **options)
        for own, _ in pairs:
            _note_use(own, False)
        for own, alias in pairs:  # the operator may have resized an output
            if alias.shape != own.shape or alias.data_ptr() != own.data_ptr():
                _cpu_alias(own.resize_(alias.shape)).copy_(alias)
        return tree_map(back, result)

    return call


def _cpu_alias(tensor: Tensor) -> Tensor:
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    memory = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
    flat = torch.frombuffer(memory, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(
        flat, tensor.storage_offset(), tensor.shape, tensor.stride()
    )


def _to_device(tensor: Tensor) -> Tensor:
    copied = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
    _cpu_alias(copied).copy_(tensor)
    _note_use(copied, True)
    return copied


def _copy(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    is_plain = to.dtype == source.dtype and to.shape == source.shape
    if _late and non_blocking and is_plain and to.is_contiguous() and source.is_contiguous():
        stream = torch.cuda.current_stream().cuda_stream
        memories = (tensor.untyped_storage().data_ptr() for tensor in (to, source))
        _late.standInCopy(to.data_ptr(), source.data_ptr(), to.nbytes, stream, *memories)
        return to
    _catch_up()
    there, here = (_cpu_alias(tensor) if tensor.is_cuda else tensor for tensor in (to, source))
    there.copy_(here)
    return to


def _note_use(tensor: Tensor, is_written: bool) -> None:
    """Report an operator's use of a tensor: copies on side streams must wait for it."""
    if _late:
        stream = torch.cuda.current_stream().cuda_stream
        _late.standInUse(tensor.untyped_storage().data_ptr(), is_written, stream)


def _catch_up() -> None:
    """Run what waits on the current stream, because an operator that follows on the stream runs now."""
    if _late:
        _late.standInCatchUp(torch.cuda.current_stream().cuda_stream)


def _batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor | None, variance: Tensor | None, *options: Any
) -> tuple[Tensor, ...]:
    """Normalize in 16 bits with parameters in fp32. cuDNN has this operator, the CPU does not.

    Without running statistics (InstanceNorm) `mean` and `variance` are None.
    """
    wide = _cpu_alias(x).to(weight.dtype)
    others = [tensor if tensor is None else _cpu_alias(tensor) for tensor in (weight, bias, mean, variance)]
    y, *saved = torch.ops.aten.native_batch_norm(wide, *others, *options)
    return (
        _to_device(y.to(x.dtype)),
        *map(_to_device, saved),
        torch.empty(0, dtype=torch.uint8, device="cuda"),
    )


def _batch_norm_backward(
    x: Tensor, dy: Tensor, weight: Tensor, mean: Tensor | None, variance: Tensor | None,
    saved_mean: Tensor, saved_factor: Tensor, epsilon: float, reserve: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    wide = [_cpu_alias(tensor).to(weight.dtype) for tensor in (dy, x)]
    saved = [_cpu_alias(tensor) for tensor in (saved_mean, saved_factor)]
    dx, *others = torch.ops.aten.native_batch_norm_backward(
        *wide, _cpu_alias(weight), None, None, *saved, True, epsilon, [True] * 3
    )
    return _to_device(dx.to(x.dtype)), *map(_to_device, others)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, needs: bool, *_: Any,
    scale: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute the fused kernel's attention in its plain form, without dropout and not causal."""
    y = _weigh(query, key, bias, scale) @ _cpu_alias(value)
    rows = -(-query.size(2) // 32) * 32 if needs else 0
    sums, seed = torch.empty(*query.shape[:2], rows, device="cuda"), torch.empty((), dtype=torch.int64)
    return _to_device(y.transpose(1, 2).contiguous().transpose(1, 2)), sums, seed, seed


def _attention_backward(
    dy: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *_: Any,
    scale: float | None = None,
) -> tuple[Any, ...]:  # fmt: skip
    weights = _weigh(query, key, bias, scale)
    dy, q, k, v = map(_cpu_alias, (dy, query, key, value))
    dweights = dy @ v.mT
    dscores = weights * (dweights - (dweights * weights).sum(-1, keepdim=True))
    factor = scale or q.size(-1) ** -0.5
    return (*map(_to_device, (dscores @ k * factor, dscores.mT @ q * factor, weights.mT @ dy)), None)


def _weigh(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    scores = _cpu_alias(query) @ _cpu_alias(key).mT * (scale or query.size(-1) ** -0.5)
    return (scores if bias is None else scores + _cpu_alias(bias)).softmax(-1)


def _depthwise(x: Tensor, weight: Tensor, kernel: Any, bias: Tensor | None, *geometry: Any) -> Tensor:
    """Convolve each channel by a filter of its own. PyTorch has kernels for this, without cuDNN."""
    wide = [None if tensor is None else _cpu_alias(tensor).float() for tensor in (x, weight, bias)]
    return _to_device(torch.ops.aten.convolution(*wide, *geometry, False, [0, 0], x.shape[1]).to(x.dtype))


def _convolution_backward(
    dy: Tensor, x: Tensor, weight: Tensor, sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, mask: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Differentiate a depthwise convolution that PyTorch has kernels for. Leave all others to PyTorch."""
    options = (stride, padding, dilation, transposed, output_padding, groups)
    function = torch.ops.aten.convolution_backward.default
    if torch._C._select_conv_backend(x, weight, None, *options, sizes).name != "CudaDepthwise2d":
        # PyTorch's function for all devices has this key. It asks the tensors for their device.
        gradients: tuple[Tensor | None, ...] = function.redispatch(
            torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), dy, x, weight, sizes, *options, mask
        )
        return gradients
    wide = [_cpu_alias(tensor).float() for tensor in (dy, x, weight)]
    results = function(*wide, sizes, *options, mask)
    return tuple(
        _to_device(gradient.to(x.dtype)) if is_wanted else None
        for gradient, is_wanted in zip(results, mask, strict=True)
    )

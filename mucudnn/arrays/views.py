"""Arrays of any library: where they lie, and results in the library that the caller uses.

No library is imported: an array of PyTorch is one of a module that is loaded already, all others speak
NumPy's array interface, the CUDA array interface or DLPack.
"""

import math
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from mucudnn._native import read_dlpack
from mucudnn.errors import (
    ArgumentTypeError,
    MixedDevicesError,
    NoEngineError,
    NotDifferentiableError,
    NothingFitsError,
    UsageError,
    shown,
)

TYPES = ("f32", "f64", "f16", "bf16")
ITEM_SIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
_OF_NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
_OF_INTERFACE = {"<f4": "f32", "<f8": "f64", "<f2": "f16"}
_OF_DLPACK = {"2:32:1": "f32", "2:64:1": "f64", "2:16:1": "f16", "4:16:1": "bf16"}
_CPU, _CUDA = 1, 2  # DLDeviceType


class View(NamedTuple):
    """Where an array lies. It is packed, in the order of its axes."""

    address: int
    shape: tuple[int, ...]
    data_type: str
    device: str  # `cpu`, `cuda:0`
    writable: bool
    owner: object  # keeps the memory
    stream: int = 0  # of a CUDA device, where its values are made and wanted

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * ITEM_SIZES[self.data_type]


def read(array: Any, name: str) -> View:
    """The array that the caller calls `name`.

    Raises ArgumentTypeError for what is no array of f32, f64, f16 or bf16, and for masked arrays; UsageError
    where it is not packed; NotDifferentiableError for a tensor whose gradient would be lost.
    """
    if type(array) is np.ndarray:
        return _read_interface(array, array.__array_interface__, name, "cpu")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if (array.requires_grad and torch.is_grad_enabled()) or _has_tangent(torch, array):
            raise NotDifferentiableError(
                f"{name} requires a gradient, which this function does not give: use mucudnn.torch, "
                "torch.no_grad() or detach()"
            )
        return read_tensor(array, name)
    interface = _given(array, "__array_interface__", name)
    if interface is not None:
        return _read_interface(array, _checked(array, interface, name), name, "cpu")
    return _read_other(array, name)


def _has_tangent(torch: Any, tensor: Any) -> bool:
    """Of the differentiation in forward mode, which no_grad() does not switch off."""
    forward_ad = torch.autograd.forward_ad
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def read_tensor(tensor: Any, name: str) -> View:
    """A tensor of PyTorch, whether or not it requires a gradient."""
    torch = sys.modules["torch"]
    data_type = _torch_types().get(tensor.dtype)
    if data_type is None:
        raise _unsupported(name, tensor.dtype)
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_neg():
        raise UsageError(
            f"{name} is sparse, nested or lazily negated: make it dense with to_dense(), to_padded_tensor() "
            "or resolve_neg()"
        )
    if not tensor.is_contiguous():
        raise _not_packed(name, "contiguous()")
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:
        raise UsageError(f"{name} has no memory of its own: {_said(error)}") from error
    if address == 0 and tensor.numel() > 0 and not tensor.is_meta:
        raise UsageError(f"{name} has no memory: it is fake, or its storage was freed")
    if tensor.is_cpu:
        return _aligned(View(address, tensor.shape, data_type, "cpu", True, tensor), name)
    stream = torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0
    return _aligned(View(address, tensor.shape, data_type, str(tensor.device), True, tensor, stream), name)


def empty(like: Any, data_type: str, shape: tuple[int, ...]) -> Any:
    """An array that can be written, in the library of `like` if it can be; its values are not set.

    Raises NothingFitsError where there is no memory; ArgumentTypeError.
    """
    try:
        return _empty(like, data_type, shape)
    except (MemoryError, RuntimeError) as error:  # of NumPy and CuPy, of PyTorch
        raise NothingFitsError(f"there is no memory for a result of the shape {shape}: {error}") from None


def _empty(like: Any, data_type: str, shape: tuple[int, ...]) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(like, torch.Tensor):
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if hasattr(like, "__cuda_array_interface__"):
        cupy = sys.modules.get("cupy")
        if cupy is None or not isinstance(like, cupy.ndarray):
            raise ArgumentTypeError(f"{type(like).__name__} cannot be made here: give out=")
        return cupy.empty(shape, like.dtype)
    if data_type == "bf16":
        raise ArgumentTypeError("NumPy has no bf16 for the result: give out=")
    return np.empty(shape, _OF_NUMPY[data_type])


def scratch(like: Any, size: int) -> tuple[int, object] | None:
    """Bytes beside `like`, as (address, owner), of the allocator of its library; None if that is not known.

    On a GPU the owner may go as soon as work is put on the current stream: the allocator knows when the bytes
    are free. Raises MemoryError.
    """
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and isinstance(like, torch.Tensor):
        try:
            tensor = torch.empty(size, dtype=torch.uint8, device=like.device)
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None
        return tensor.data_ptr(), tensor
    if cupy is not None and isinstance(like, cupy.ndarray):
        array = cupy.empty(size, np.uint8)
        return array.data.ptr, array
    return None


def written(array: Any) -> None:
    """Tell PyTorch that its tensor has other values now: gradients may need the old ones."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor) and not array.is_inference():
        torch.autograd.graph.increment_version(array)


def returned(result: Any, like: Any) -> Any:
    """A result of `empty` as the library of `like` has it. Raises UsageError where it takes none."""
    if type(result) is np.ndarray and not hasattr(like, "__array_interface__"):
        namespace = getattr(like, "__array_namespace__", None)
        if namespace is None:
            return result
        try:
            return namespace().from_dlpack(result)
        except Exception as error:
            library = f"the library of {type(like).__name__}"
            raise UsageError(f"{library} does not take the result: {_said(error)}; give out=") from error
    return result


def check_same(name: str, view: View, other_name: str, other: View) -> None:
    """Raises MixedDevicesError, ArgumentTypeError where devices or data types differ."""
    if view.device != other.device:
        devices = f"{view.device} and {other.device}"
        raise MixedDevicesError(f"{name} and {other_name} are on {devices}: move them to one device")
    if view.data_type != other.data_type:
        types = f"{view.data_type} and {other.data_type}"
        raise ArgumentTypeError(f"{name} and {other_name} are of {types}: convert them to one type")


def overlap(a: View, b: View) -> bool:
    """Whether two arrays share memory."""
    return a.address < b.address + b.size and b.address < a.address + a.size


@cache
def _torch_types() -> dict[object, str]:
    torch = sys.modules["torch"]
    return {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}


def _given(array: Any, attribute: str, name: str) -> Any:
    """An attribute of an array, None where there is none. Raises UsageError where asking for it fails."""
    try:
        return getattr(array, attribute, None)
    except Exception as error:
        raise UsageError(f"{name} cannot be read: its {attribute} fails: {_said(error)}") from error


def _checked(array: Any, interface: Any, name: str) -> dict[str, Any]:
    """An array interface that is what NumPy and CUDA say it is. Raises ArgumentTypeError."""
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise _masked(name)
    if not isinstance(interface, dict):
        raise _no_array(array, name)
    whose = f"{name} is {type(array).__name__}, whose array interface"
    for key in ("shape", "typestr", "data"):
        if key not in interface:
            raise ArgumentTypeError(f"{whose} has no {key!r}")
    shape, strides = interface["shape"], interface.get("strides")
    address: Any = interface["data"][0] if _is_tuple(interface["data"], 2) else None
    well_formed = {
        "shape": _is_tuple(shape) and all(type(size) is int and 0 <= size < 2**63 for size in shape),
        "typestr": isinstance(interface["typestr"], str),
        "data": type(address) is int and 0 <= address < 2**64,
        "strides": strides is None
        or (_is_tuple(strides, len(shape)) and all(type(stride) is int for stride in strides)),
        "stream": interface.get("stream") is None or type(interface["stream"]) is int,
    }
    for key, is_well_formed in well_formed.items():
        if not is_well_formed:
            raise ArgumentTypeError(f"{whose} says that {key!r} is {shown(interface[key])}")
    if interface.get("mask") is not None:
        raise _masked(name)
    _check_memory(name, address, shape)
    return interface


def _is_tuple(value: object, length: int | None = None) -> bool:
    return isinstance(value, tuple | list) and length in (None, len(value))


def _read_interface(array: Any, interface: dict[str, Any], name: str, device: str) -> View:
    """The dictionary that NumPy's and CUDA's array interfaces share."""
    shape, data_type = tuple(interface["shape"]), _OF_INTERFACE.get(interface["typestr"])
    if data_type is None:
        raise _unsupported(name, getattr(array, "dtype", interface["typestr"]))
    address, read_only = interface["data"]
    if interface.get("strides") is not None and not _is_packed(interface, ITEM_SIZES[data_type]):
        raise _not_packed(name, "numpy.ascontiguousarray")
    stream = 0 if device == "cpu" else _current_stream(array, interface)
    return _aligned(View(address, shape, data_type, device, not read_only, array, stream), name)


def _aligned(view: View, name: str) -> View:
    """The view. Raises UsageError where its elements cannot lie at its address."""
    if view.address % ITEM_SIZES[view.data_type]:
        raise UsageError(f"{name} does not lie at a multiple of its element's size: copy it")
    return view


def _check_memory(name: str, address: int, shape: Any) -> None:
    """Raise UsageError where there are elements, but no memory."""
    if address == 0 and math.prod(shape) > 0:
        raise UsageError(f"{name} has no memory: its address is 0")


def _current_stream(array: Any, interface: dict[str, Any]) -> int:
    """CuPy's current one; else that on which the array says it is made, else the default one."""
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return int(cupy.cuda.get_current_stream().ptr)
    return int(interface.get("stream") or 0)


def _is_packed(interface: dict[str, Any], item: int) -> bool:
    expected = item
    for size, stride in zip(reversed(interface["shape"]), reversed(interface["strides"]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _read_other(array: Any, name: str) -> View:
    """An array of the CUDA array interface or of DLPack."""
    if isinstance(array, type):
        raise _no_array(array, name)
    interface = _given(array, "__cuda_array_interface__", name)
    if interface is not None:
        number = _dlpack_device(array, name)[1] if hasattr(array, "__dlpack_device__") else 0
        return _read_interface(array, _checked(array, interface, name), name, f"cuda:{number}")
    if _given(array, "__dlpack__", name) is None:
        raise _no_array(array, name)
    kind, _ = _dlpack_device(array, name)
    if kind != _CPU:
        raise NoEngineError(f"{name} lies on a device of DLPack's type {kind}: there is no engine for it")
    try:
        try:
            capsule = array.__dlpack__(max_version=(1, 0))
        except TypeError:  # of DLPack 0, which has no versions
            capsule = array.__dlpack__()
        address, shape, type_, packed, read_only = read_dlpack(capsule)
    except Exception as error:
        raise _unreadable(name, error) from error
    if type_ not in _OF_DLPACK:
        raise _unsupported(name, getattr(array, "dtype", type_))
    if not packed:
        raise _not_packed(name, "a copy")
    _check_memory(name, address, shape)
    return _aligned(View(address, shape, _OF_DLPACK[type_], "cpu", not read_only, capsule), name)


def _dlpack_device(array: Any, name: str) -> tuple[int, int]:
    """DLPack's type and number of the device that the array lies on. Raises UsageError."""
    try:
        kind, number = array.__dlpack_device__()
        return int(kind), int(number)
    except Exception as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> UsageError:
    return UsageError(f"{name} cannot be read by DLPack: {_said(error)}")


def _said(error: Exception) -> str:
    """The first line of an error of another library."""
    return str(error).partition("\n")[0] or type(error).__name__


def _masked(name: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{name} is a masked array, whose mask a convolution cannot heed: give filled() or data"
    )


def _no_array(array: Any, name: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{name} is {type(array).__name__}, not an array: it has neither DLPack nor an array interface"
    )


def _unsupported(name: str, dtype: object) -> ArgumentTypeError:
    return ArgumentTypeError(f"{name} is of {dtype}: convolutions take {', '.join(TYPES)}")


def _not_packed(name: str, advice: str) -> UsageError:
    return UsageError(f"{name} is not contiguous in the order of its axes: make it so with {advice}")

"""Views of arrays of any library, and results in the library of the caller.

This module imports no array library but NumPy: a PyTorch tensor or CuPy array can exist only if its library
is loaded already. All other arrays have NumPy's array interface, the CUDA array interface or DLPack.
"""

import math
import sys
from functools import cache
from types import SimpleNamespace
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
)

TYPES = ("f32", "f64", "f16", "bf16")
ITEM_SIZES = {"f32": 4, "f64": 8, "f16": 2, "bf16": 2}
_NUMPY_TYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
_INTERFACE_TYPES = {"<f4": "f32", "<f8": "f64", "<f2": "f16"}
_DLPACK_TYPES = {"2:32:1": "f32", "2:64:1": "f64", "2:16:1": "f16", "4:16:1": "bf16"}  # code:bits:lanes
_CPU, _CUDA = 1, 2  # DLDeviceType


class View(NamedTuple):
    """The place, shape and type of a packed array, whose elements lie in the order of its axes."""

    address: int
    shape: tuple[int, ...]
    data_type: str
    device: str  # `cpu`, or a GPU such as `cuda:0`
    writable: bool
    owner: object  # the object that keeps the memory alive
    stream: int = 0  # the CUDA stream on which its values are made and used

    @property
    def size(self) -> int:
        """The size in bytes."""
        return math.prod(self.shape) * ITEM_SIZES[self.data_type]


def read(array: Any, name: str) -> View:
    """Return the view of an array; errors call the array `name`.

    Raises ArgumentTypeError if it is masked or not an array of f32, f64, f16 or bf16; UsageError if it is not
    packed or has no memory; NotDifferentiableError for a tensor whose gradient would be lost; NoEngineError
    for an array on a device that no engine computes on.
    """
    if type(array) is np.ndarray:
        return _read_interface(array, array.__array_interface__, name, "cpu")
    if (torch := _library_of(array, "torch", "Tensor")) is not None:
        # no_grad() does not prevent differentiation in forward mode.
        level = torch.autograd.forward_ad._current_level
        has_tangent = level >= 0 and torch.autograd.forward_ad.unpack_dual(array).tangent is not None
        if (array.requires_grad and torch.is_grad_enabled()) or has_tangent:
            raise NotDifferentiableError(
                f"{name} requires a gradient, which this function does not compute: use mucudnn.torch, "
                "torch.no_grad() or detach()"
            )
        return read_tensor(array, name)
    interface = _get_attribute(array, "__array_interface__", name)
    if interface is not None:
        return _read_interface(array, _check_interface(array, interface, name), name, "cpu")
    return _read_other(array, name)


def _library_of(array: Any, name: str, class_name: str) -> Any:
    """Return a library of this name if it is loaded and the array is of its class; else None."""
    library = sys.modules.get(name)
    return library if library is not None and isinstance(array, getattr(library, class_name)) else None


def read_tensor(tensor: Any, name: str) -> View:
    """Return the view of a PyTorch tensor, even if the tensor requires a gradient.

    Raises ArgumentTypeError for an unsupported data type, and UsageError if the tensor is not packed or has
    no memory.
    """
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
        raise UsageError(f"{name} has no memory of its own: {_read_first_line(error)}") from error
    if address == 0 and tensor.numel() > 0 and not tensor.is_meta:
        raise UsageError(f"{name} has no memory: it is fake, or its storage was freed")
    if tensor.is_cpu:
        return _aligned(View(address, tensor.shape, data_type, "cpu", True, tensor), name)
    stream = torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0
    return _aligned(View(address, tensor.shape, data_type, str(tensor.device), True, tensor, stream), name)


def empty(like: Any, data_type: str, shape: tuple[int, ...]) -> Any:
    """Return a new array without values, of the library of `like` or else of NumPy.

    Raises NothingFitsError if there is no memory, and ArgumentTypeError if no library can make the array.
    """
    try:
        return _empty(like, data_type, shape)
    except (MemoryError, RuntimeError) as error:  # a RuntimeError from PyTorch
        raise NothingFitsError(f"there is no memory for a result of the shape {shape}: {error}") from None


def _empty(like: Any, data_type: str, shape: tuple[int, ...]) -> Any:
    if type(like) is np.ndarray:
        return np.empty(shape, _NUMPY_TYPES[data_type])
    if (torch := _library_of(like, "torch", "Tensor")) is not None:
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    if hasattr(like, "__cuda_array_interface__"):
        if (cupy := _library_of(like, "cupy", "ndarray")) is None:
            raise ArgumentTypeError(
                f"a result of the type {type(like).__name__} cannot be made here: give out="
            )
        return cupy.empty(shape, like.dtype)
    if data_type == "bf16":
        raise ArgumentTypeError("NumPy has no bf16 for the result: give out=")
    return np.empty(shape, _NUMPY_TYPES[data_type])


def allocate_scratch(like: Any, size: int) -> tuple[int, object] | None:
    """Allocate `size` bytes on the device of `like` with the allocator of its library.

    Return the address and the object that owns the bytes, or None for a library other than PyTorch and CuPy.
    The caller may drop the owner once the work is on the current stream, because the allocator reuses the
    bytes only for later work on that stream. Raises MemoryError.
    """
    if (torch := _library_of(like, "torch", "Tensor")) is not None:
        try:
            tensor = torch.empty(size, dtype=torch.uint8, device=like.device)
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None
        return tensor.data_ptr(), tensor
    if (cupy := _library_of(like, "cupy", "ndarray")) is not None:
        array = cupy.empty(size, np.uint8)
        return array.data.ptr, array
    return None


def note_written(array: Any) -> None:
    """Tell PyTorch that a tensor's values changed, so that it refuses gradients that need the old ones."""
    if (torch := _library_of(array, "torch", "Tensor")) is not None and not array.is_inference():
        torch.autograd.graph.increment_version(array)


def convert_result(result: Any, like: Any) -> Any:
    """Convert an array of `empty` to the library of `like` if that has the array API. Raises UsageError."""
    if type(like) is np.ndarray:  # to ask such an array for its interface takes long
        return result
    if type(result) is np.ndarray and not hasattr(like, "__array_interface__"):
        namespace = getattr(like, "__array_namespace__", None)
        if namespace is None:
            return result
        try:
            return namespace().from_dlpack(result)
        except Exception as error:
            library = f"the library of {type(like).__name__}"
            raise UsageError(
                f"{library} does not take the result: {_read_first_line(error)}; give out="
            ) from error
    return result


def check_same(name: str, view: View, other_name: str, other: View) -> None:
    """Raise MixedDevicesError if the devices differ, and ArgumentTypeError if the data types differ."""
    if view.device != other.device:
        devices = f"{view.device} and {other.device}"
        raise MixedDevicesError(f"{name} and {other_name} are on {devices}: move them to one device")
    if view.data_type != other.data_type:
        types = f"{view.data_type} and {other.data_type}"
        raise ArgumentTypeError(f"{name} and {other_name} are of {types}: convert them to one type")


def overlap(a: View, b: View) -> bool:
    """Return whether two arrays share memory."""
    return a.address < b.address + b.size and b.address < a.address + a.size


@cache
def _torch_types() -> dict[object, str]:
    torch = sys.modules["torch"]
    return {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}


def _get_attribute(array: Any, attribute: str, name: str) -> Any:
    """Return an attribute of an array, or None if it has none. Raises UsageError if the attribute fails."""
    try:
        return getattr(array, attribute, None)
    except Exception as error:
        raise UsageError(
            f"{name} cannot be read: its {attribute} fails: {_read_first_line(error)}"
        ) from error


def _check_interface(array: Any, interface: Any, name: str) -> dict[str, Any]:
    """Return an array interface as NumPy states it, without strides if the array is packed, and the stream.

    NumPy reads no element, so this is safe for CUDA's interface, too. Raises ArgumentTypeError.
    """
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise _masked(name)
    if not isinstance(interface, dict):
        raise _not_an_array(array, name)
    if interface.get("mask") is not None:
        raise _masked(name)
    try:
        stated = np.asarray(SimpleNamespace(__array_interface__=interface)).__array_interface__
        return {**stated, "stream": int(interface.get("stream") or 0)}
    except Exception as error:
        raise ArgumentTypeError(
            f"{name} is {type(array).__name__}, whose array interface cannot be read: "
            f"{_read_first_line(error)}"
        ) from None


def _read_interface(array: Any, interface: dict[str, Any], name: str, device: str) -> View:
    """Return the view that an array interface describes; NumPy's and CUDA's have the same form."""
    shape, data_type = interface["shape"], _INTERFACE_TYPES.get(interface["typestr"])
    if data_type is None:
        raise _unsupported(name, getattr(array, "dtype", interface["typestr"]))
    address, read_only = interface["data"]
    if interface["strides"] is not None:
        raise _not_packed(name, "numpy.ascontiguousarray")
    stream = 0
    if device != "cpu":
        cupy = _library_of(array, "cupy", "ndarray")
        stream = int(cupy.cuda.get_current_stream().ptr if cupy else interface["stream"])
    return _aligned(View(address, shape, data_type, device, not read_only, array, stream), name)


def _aligned(view: View, name: str) -> View:
    """Return the view. Raises UsageError if its elements cannot lie at its address."""
    if view.address % ITEM_SIZES[view.data_type]:
        raise UsageError(f"the address of {name} is not a multiple of the size of its elements: copy it")
    return view


def _read_other(array: Any, name: str) -> View:
    """Return the view of an array with the CUDA array interface or DLPack."""
    if isinstance(array, type):
        raise _not_an_array(array, name)
    interface = _get_attribute(array, "__cuda_array_interface__", name)
    if interface is not None:
        number = _dlpack_device(array, name)[1] if hasattr(array, "__dlpack_device__") else 0
        return _read_interface(array, _check_interface(array, interface, name), name, f"cuda:{number}")
    if _get_attribute(array, "__dlpack__", name) is None:
        raise _not_an_array(array, name)
    kind, _ = _dlpack_device(array, name)
    if kind != _CPU:
        raise NoEngineError(f"{name} is on a device of DLPack's type {kind}: there is no engine for it")
    try:
        try:
            capsule = array.__dlpack__(max_version=(1, 0))
        except TypeError:  # DLPack had no such argument before 1.0
            capsule = array.__dlpack__()
        address, shape, type_, packed, read_only = read_dlpack(capsule)
    except Exception as error:
        raise _unreadable(name, error) from error
    if type_ not in _DLPACK_TYPES:
        raise _unsupported(name, getattr(array, "dtype", type_))
    if not packed:
        raise _not_packed(name, "a copy")
    if address == 0 and math.prod(shape) > 0:
        raise UsageError(f"{name} has no memory: its address is 0")
    return _aligned(View(address, shape, _DLPACK_TYPES[type_], "cpu", not read_only, capsule), name)


def _dlpack_device(array: Any, name: str) -> tuple[int, int]:
    """Return DLPack's type and the number of an array's device. Raises UsageError."""
    try:
        kind, number = array.__dlpack_device__()
        return int(kind), int(number)
    except Exception as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> UsageError:
    return UsageError(f"{name} cannot be read by DLPack: {_read_first_line(error)}")


def _read_first_line(error: Exception) -> str:
    """Return the first line of another library's error, or the error's type if it has no text."""
    return str(error).partition("\n")[0] or type(error).__name__


def _masked(name: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{name} is a masked array, and a convolution cannot respect its mask: give filled() or data"
    )


def _not_an_array(array: Any, name: str) -> ArgumentTypeError:
    return ArgumentTypeError(
        f"{name} is {type(array).__name__}, not an array: it has neither DLPack nor an array interface"
    )


def _unsupported(name: str, dtype: object) -> ArgumentTypeError:
    return ArgumentTypeError(f"{name} is of {dtype}: convolutions take {', '.join(TYPES)}")


def _not_packed(name: str, advice: str) -> UsageError:
    return UsageError(f"{name} is not contiguous in the order of its axes: make it contiguous with {advice}")

"""Saved tensors: their storages, which several of them may share, and checks when autograd reads them."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from mucudnn.errors import MucudnnError
from mucudnn.torch.private import tree_leaves

Storage: TypeAlias = torch.UntypedStorage


class Watched:
    """The version of a saved tensor, which reveals changes in place.

    PyTorch does not compare versions if hooks save the tensor. An empty tensor that shares the version's
    counter takes no memory.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._version, self._shape = tensor._version, tensor.shape
        self._counter = tensor.detach()
        self._counter.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)

    def check(self) -> None:
        """Raise PyTorch's error if the tensor was changed in place since it was saved."""
        check_version(self._counter, self._version, self._shape)


def check_version(tensor: Tensor, version: int, shape: torch.Size | None = None) -> None:
    """Raise PyTorch's error if a tensor, whose shape may be given, was changed since it had this version."""
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape if shape is None else shape)}] is at version "
            f"{tensor._version}; expected version {version} instead. Hint: enable anomaly detection to find "
            "the operation that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True)."
        )


class Kept:
    """A saved tensor that no plan manages. It stays as it is, but its version is checked."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._version = tensor, tensor._version

    def unpack(self) -> Tensor:
        """Return the tensor. Raises PyTorch's error if it was changed in place."""
        check_version(self._tensor, self._version)
        return self._tensor


class SavedView:
    """The part of a storage that a saved tensor covers."""

    def __init__(self, tensor: Tensor) -> None:
        self._dtype = tensor.dtype
        self._place = (tensor.storage_offset(), tensor.size(), tensor.stride())

    def of(self, storage: Storage) -> Tensor:
        """Return the tensor in another storage of the same size."""
        empty = torch.empty(0, dtype=self._dtype, device=storage.device)
        return empty.set_(storage, *self._place)


def tensors_in(values: Any) -> list[Tensor]:
    """Return the tensors among arguments or results, also within mappings and dataclasses."""
    tensors: list[Tensor] = []
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
        elif isinstance(leaf, Mapping):
            tensors += tensors_in(list(leaf.values()))
        elif is_dataclass(leaf) and not isinstance(leaf, type):
            tensors += tensors_in([getattr(leaf, field.name) for field in fields(leaf)])
    return tensors


def check_size(storage: Storage, size: int) -> Storage:
    """Return a storage that was computed again. Raises MucudnnError if it has another size than before."""
    if storage.nbytes() != size:
        raise MucudnnError(
            f"a tensor of {size} bytes was computed again with {storage.nbytes()} bytes: plan the model with "
            "recompute=False"
        )
    return storage


def has_storage(tensor: Tensor) -> bool:
    """Return whether a tensor has a storage, unlike sparse tensors and tensors in torch.vmap."""
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


def bytes_of(storage: Storage) -> Tensor:
    """Return the bytes of a storage as a tensor with one axis."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def reference(tensor: Tensor) -> Any:
    """Return a weak reference to a tensor's storage. While it exists, no other storage gets the same key."""
    return StorageWeakRef(tensor.untyped_storage())


def key_of(tensor: Tensor) -> int:
    """Return a number that no other storage has while this one, or a weak reference to it, exists."""
    key: int = tensor.untyped_storage()._cdata
    return key

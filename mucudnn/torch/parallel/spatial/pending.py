"""Tensors whose part is computed when it is needed, from another tensor.

Most padded tensors go into a convolution, which adds the padding to the rows that it fetches. If a function
changes the other tensor in place before, the part is computed first.
"""

from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor

_pending: WeakValueDictionary[int, Any] = WeakValueDictionary()  # in the order in which they were made
_count = 0


def note(tensor: Any) -> None:
    """Note a tensor whose part is not computed yet; its `source` is the tensor that it needs."""
    global _count
    _count += 1
    _pending[_count] = tensor


def writes(function: Any) -> bool:
    """Return whether a function changes its first argument by name, such as `add_`."""
    name = getattr(function, "__name__", "")
    return (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"


def compute_before(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Compute the parts that need a tensor which a function is about to change in place."""
    if not _pending:
        return
    is_operator = getattr(function, "__name__", "").startswith("__i")  # such as __iadd__
    if not (writes(function) or is_operator or kwargs.get("inplace") is True):
        return
    changed = args[0] if args else next(iter(kwargs.values()), None)
    changed = getattr(changed, "local", changed)
    for tensor in [_pending[number] for number in sorted(_pending)] if isinstance(changed, Tensor) else ():
        if _storage(tensor.source.local) == _storage(changed):
            _ = tensor.local


def _storage(x: Tensor) -> Any:
    return x.untyped_storage()._cdata

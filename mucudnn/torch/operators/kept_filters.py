"""The filters that models in eval mode keep in the form in which an algorithm computes with them.

A filter is kept for each shape of input that it meets, until the weight changes or is freed, or until the
module is trained or restored. It has a copy of the weight, with which each call compares all values, because
PyTorch does not count writes by `.data` and by NumPy views.

Together the filters take at most MUCUDNN_KEPT_FILTERS bytes. None is given up for another weight: each layer
of a model would take the room of the layer that runs next.
"""

import logging
import os
from dataclasses import dataclass, field
from threading import Lock
from weakref import ref

from torch import Tensor

from mucudnn import settings
from mucudnn._native import KeptFilter
from mucudnn.arrays.dispatch import Prepared
from mucudnn.errors import MucudnnError
from mucudnn.sizes import format_size

_logger = logging.getLogger("mucudnn")


@dataclass
class _Weight:
    weight: ref[Tensor]
    filters: dict[Prepared, KeptFilter] = field(default_factory=dict)  # keys made the filters
    is_refused: bool = False  # True if there was no room


_weights: dict[int, _Weight] = {}  # the keys are identities of weights
_changing = Lock()


def _renew() -> None:
    """Replace the lock in a child of fork(): the thread that held it may not exist there."""
    global _changing
    _changing = Lock()


os.register_at_fork(after_in_child=_renew)


def can_keep(w: Tensor) -> bool:
    """Return False for a weight for which there was no room."""
    known = _weights.get(id(w))
    return known is None or not known.is_refused


def find(w: Tensor, address: int, ready: Prepared) -> KeptFilter | None:
    """Return the kept filter of a weight for a division, and make it if need be.

    `address` is that of the weight as the engine reads it. Return None if the division reads the weight as it
    is, or if there is no room.
    """
    if not ready.kept_filter_size:
        return None
    known = _weights.get(id(w))
    kept = None if known is None else known.filters.get(ready)
    if kept is not None and kept.matches(address):
        return kept
    with _changing:
        return _keep(w, address, ready)


def forget(w: Tensor) -> None:
    """Free what is kept of a weight."""
    _free(id(w))


def size(w: Tensor | None = None) -> int:
    """Return the bytes of all kept filters, or of those of one weight."""
    known = [*_weights.values()] if w is None else [_weights[id(w)]] if id(w) in _weights else []
    return sum(kept.size for weight in known for kept in [*weight.filters.values()])


def _free(identity: int) -> None:
    if _weights.pop(identity, None) is not None:
        for other in [*_weights.values()]:  # there may be room now
            other.is_refused = False


def _keep(w: Tensor, address: int, ready: Prepared) -> KeptFilter | None:
    identity = id(w)
    if identity not in _weights:
        _weights[identity] = _Weight(ref(w, lambda _: _free(identity)))
    known = _weights[identity]
    if ready in known.filters:  # the weight has changed
        known.filters.clear()
    limit, needed = settings.KEPT_FILTERS.read(), ready.kept_filter_size + w.nbytes
    while limit is not None and size() + needed > limit:
        if not known.filters:
            known.is_refused = True
            _logger.info(
                "A transformed filter of %s is not kept: the others take %s, MUCUDNN_KEPT_FILTERS is %s",
                *map(format_size, (needed, size(), limit)),
            )
            return None
        del known.filters[next(iter(known.filters))]  # the oldest: its shape of input may not come back
    try:
        kept = known.filters[ready] = ready.keep_filter(address)
    except MucudnnError:  # there is no memory: the algorithm transforms the filter in each call
        known.is_refused = True
        return None
    return kept

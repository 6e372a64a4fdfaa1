"""The filters that models in eval mode keep in the form in which an algorithm computes with them.

A filter is kept for each shape of input that it meets, until the weight changes or is freed, or until the
module is trained or restored. Together the filters take at most MUCUDNN_KEPT_FILTERS bytes. None is given up
for another weight: each layer of a model would take the room of the layer that runs next.
"""

import logging
import os
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple
from weakref import ref

from torch import Tensor

from mucudnn import settings
from mucudnn._native import KeptFilter
from mucudnn.arrays.dispatch import Prepared
from mucudnn.errors import MucudnnError
from mucudnn.sizes import format_size

_logger = logging.getLogger("mucudnn")


class _Entry(NamedTuple):
    ready: Prepared  # the division that made the filter
    version: int  # the weight's
    address: int  # the weight's
    kept: KeptFilter


@dataclass
class _Weight:
    weight: ref[Tensor]
    entries: list[_Entry] = field(default_factory=list)
    is_refused: bool = False  # True if there was no room


_weights: dict[int, _Weight] = {}  # the keys are identities of weights
_changing = Lock()


def _renew() -> None:
    """Replace the lock in a child of fork(): the thread that held it may not exist there."""
    global _changing
    _changing = Lock()


os.register_at_fork(after_in_child=_renew)


def can_keep(w: Tensor) -> bool:
    """Return False for a weight for which there was no room, or whose changes PyTorch does not count.

    Those are the tensors that were made under `torch.inference_mode`.
    """
    known = _weights.get(id(w))
    return not (w.is_inference() if known is None else known.is_refused)


def find(w: Tensor, address: int, ready: Prepared) -> KeptFilter | None:
    """Return the kept filter of a weight for a division, and make it if need be.

    `address` is that of the weight as the engine reads it. Return None if the division reads the weight as it
    is, or if there is no room.
    """
    if not ready.kept_filter_size or w.is_inference():
        return None
    known = _weights.get(id(w))
    for entry in known.entries if known is not None else ():
        if entry.ready is ready and _is_current(entry, w, address):
            return entry.kept
    with _changing:
        return _keep(w, address, ready)


def forget(w: Tensor) -> None:
    """Free what is kept of a weight."""
    _free(id(w))


def size(w: Tensor | None = None) -> int:
    """Return the bytes of all kept filters, or of those of one weight."""
    known = [*_weights.values()] if w is None else [_weights[id(w)]] if id(w) in _weights else []
    return sum(entry.kept.size for weight in known for entry in weight.entries)


def _free(identity: int) -> None:
    if _weights.pop(identity, None) is not None:
        for other in [*_weights.values()]:  # there may be room now
            other.is_refused = False


def _keep(w: Tensor, address: int, ready: Prepared) -> KeptFilter | None:
    identity = id(w)
    if identity not in _weights:
        _weights[identity] = _Weight(ref(w, lambda _: _free(identity)))
    known = _weights[identity]
    known.entries = [entry for entry in known.entries if _is_current(entry, w, address)]
    limit = settings.KEPT_FILTERS.read()
    while limit is not None and size() + ready.kept_filter_size > limit:
        if not known.entries:
            known.is_refused = True
            _logger.info(
                "A transformed filter of %s is not kept: the others take %s, MUCUDNN_KEPT_FILTERS is %s",
                *map(format_size, (ready.kept_filter_size, size(), limit)),
            )
            return None
        del known.entries[0]  # the oldest: its shape of input may not come back
    try:
        entry = _Entry(ready, w._version, w.data_ptr(), ready.keep_filter(address))
    except MucudnnError:  # there is no memory: the algorithm transforms the filter in each call
        known.is_refused = True
        return None
    known.entries.append(entry)
    return entry.kept


def _is_current(entry: _Entry, w: Tensor, address: int) -> bool:
    is_same = entry.version == w._version and entry.address == w.data_ptr()
    return is_same and entry.kept.matches(address)

"""The user's cache for decisions about calls. Opening it takes as long as some measurements."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener


class _Kept(threading.local):
    """The block of this thread that keeps the cache open, and the cache once somebody opened it there."""

    block: ExitStack | None = None
    cache: Cache | None = None


_kept = _Kept()


@contextmanager
def user_cache(listener: Listener) -> Iterator[Cache]:
    """Yield the user's cache; inside `one_cache` it is the one that is open there. Raises MucudnnError."""
    if _kept.block is None:
        with Cache.of_user(listener, needed=False) as cache:
            yield cache
        return
    if _kept.cache is None:
        _kept.cache = _kept.block.enter_context(Cache.of_user(listener, needed=False))
    yield _kept.cache


@contextmanager
def one_cache() -> Iterator[None]:
    """Keep the cache open from its first use by this thread in the block to the block's end."""
    if _kept.block is not None:
        yield
        return
    with ExitStack() as block:
        _kept.block = block
        try:
            yield
        finally:
            _kept.block = _kept.cache = None

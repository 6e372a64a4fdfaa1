"""The user's cache for decisions about calls, which stays open because opening it is slow."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener


class _Open(threading.local):
    """The block of this thread that keeps the cache open, and the cache once it has been opened there."""

    block: ExitStack | None = None
    cache: Cache | None = None


_open = _Open()


@contextmanager
def user_cache(listener: Listener) -> Iterator[Cache]:
    """Yield the user's cache, which stays open to the end of a block of `one_cache`. Raises MucudnnError."""
    if _open.block is None:
        with Cache.of_user(listener, needed=False) as cache:
            yield cache
        return
    if _open.cache is None:
        _open.cache = _open.block.enter_context(Cache.of_user(listener, needed=False))
    yield _open.cache


@contextmanager
def one_cache() -> Iterator[None]:
    """Keep the cache open from its first use by this thread in the block to the block's end."""
    if _open.block is not None:
        yield
        return
    with ExitStack() as block:
        _open.block = block
        try:
            yield
        finally:
            _open.block = _open.cache = None

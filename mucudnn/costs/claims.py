"""Claims, with which processes that share a cache avoid measuring the same kernel twice.

A claim is a lock on one byte of a file next to the cache, at an offset that the kernel's name hashes to. The
system releases it when its process ends, however it ends, so there is no owner to look up, no expiry to guess
and nothing to clean up. Two names with the same offset would only wait for each other.

A child of fork() inherits the open file and with it the claims, which would outlive the parent. So the child
closes the file, and opens it again for a claim of its own.
"""

import fcntl
import hashlib
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

from mucudnn.forks import close_in_child, no_fork

_BUSY = (BlockingIOError, PermissionError)  # file systems differ: EAGAIN or EACCES
_MOMENT = 0.02  # seconds between two tries
PATIENCE_SECONDS = 60.0  # more than one measurement takes


class Claims:
    """The lock file of a cache. Raises OSError if it cannot be made, or its file system has no locks."""

    def __init__(self, cache: Path) -> None:
        self._path = cache.with_name(cache.name + ".lock")
        self._open()
        try:
            _try_lock(self._file, 0, fcntl.F_RDLCK)  # all processes share it
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give up all claims."""
        self._file.close()

    # A signal handler's error between `yield` and the block leaves the claim behind until `close`.
    @contextmanager
    def claim(self, name: str, tries: Iterable[object] = (None,)) -> Iterator[bool]:
        """Yield True if the claim is ours inside the block, or becomes ours while `tries` goes on.

        The holder of a claim must not wait for another one, or two processes could wait for each other.
        """
        offset = 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
        if self._file.closed:  # in a child of fork()
            self._open()
        file = self._file
        is_ours = any(_try_lock(file, offset, fcntl.F_WRLCK) for _ in tries)
        try:
            yield is_ours
        finally:
            if is_ours and not file.closed:
                _try_lock(file, offset, fcntl.F_UNLCK)

    def _open(self) -> None:
        with no_fork:
            self._file = FileIO(self._path, "a+", opener=open_no_link)
            close_in_child(self)


def open_no_link(path: str, flags: int) -> int:
    """Open a file without waiting for a pipe's writer or following a link, which could lead to any file."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def tries_until_stalled(
    what: str, tell: Callable[[str], None], progress: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Yield every moment until the owner of a claim makes no progress for PATIENCE_SECONDS.

    `progress` returns a value that changes when the owner makes progress. After a second, `tell` gets a
    message with the reason for the wait, `what`.
    """
    begin = since = time.monotonic()
    seen, is_told = progress(), False
    while (now := time.monotonic()) - since < PATIENCE_SECONDS:
        yield
        time.sleep(_MOMENT)
        if not is_told and now - begin >= 1:
            tell(f"Waiting for another process: {what}")
            is_told = True
        last, seen = seen, progress()
        if seen != last:
            since = now
    tell(f"Going on without it: nothing has changed for {PATIENCE_SECONDS:.0f} s")


def _try_lock(file: FileIO, offset: int, kind: int) -> bool:
    """Lock or unlock a byte. Return False if another process has it."""
    # The lock belongs to the open file. The process would lose its own when any thread closes the file.
    wanted = struct.pack("hhqqi0q", kind, os.SEEK_SET, offset, 1, 0)
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, wanted)
    except _BUSY:
        return False
    return True

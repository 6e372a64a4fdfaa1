"""Claims: who is measuring what, so that processes which share a cache do not measure the same thing twice.

A claim is a lock on one byte of a file beside the cache, at an offset that the kernel's name hashes to. The
system drops it with its process, however that ends: there is no owner to look up, no expiry to guess and
nothing to clean up. Two names at one offset would only wait for each other.

A child of fork() inherits the open file and with it the claims: they would outlive the parent. So the child
closes the file, and opens it anew when it makes a claim of its own.
"""

import fcntl
import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from mucudnn.forks import close_in_child, no_fork

_BUSY = (BlockingIOError, PermissionError)  # EAGAIN and EACCES, as file systems differ


class Claims:
    """The lock file of a cache. Raises OSError where it cannot be made, or where there are no locks."""

    def __init__(self, cache: Path) -> None:
        self._path = cache.with_name(cache.name + ".lock")
        self._open()
        try:
            with suppress(*_BUSY):  # another process has it: then there are locks
                _lock(self._file, 0, fcntl.F_WRLCK, wait=False)
                _lock(self._file, 0, fcntl.F_UNLCK, wait=False)
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Give up all claims."""
        self._file.close()

    @contextmanager
    def claim(self, name: str, *, wait: bool) -> Iterator[bool]:
        """Yield whether the claim is ours inside the block; with `wait`, first wait for its owner.

        The holder of a claim must not wait for another claim, or two processes wait for each other.
        """
        offset = 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
        if self._file.closed:  # in a child of fork()
            self._open()
        file = self._file
        try:
            _lock(file, offset, fcntl.F_WRLCK, wait=wait)
        except _BUSY:
            yield False
            return
        try:
            yield True
        finally:
            if not file.closed:
                _lock(file, offset, fcntl.F_UNLCK, wait=False)

    def _open(self) -> None:
        with no_fork:
            self._file = FileIO(self._path, "a+")
            close_in_child(self)


def _lock(file: FileIO, offset: int, kind: int, *, wait: bool) -> None:
    # The lock belongs to the open file: a lock of the process is lost when any thread closes the file.
    command = fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK
    fcntl.fcntl(file, command, struct.pack("hhqqi0q", kind, os.SEEK_SET, offset, 1, 0))

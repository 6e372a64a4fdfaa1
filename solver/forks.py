"""A lock for imports that a child of fork() must not find unfinished.

The importing thread does not exist in the child, so the import would never end there.
"""

# An import may log, so a fork must take `no_fork` before the lock of `logging`. A fork takes the locks of
# later imports first.
import logging  # noqa: F401
import os
from contextlib import suppress
from threading import RLock

no_fork = RLock()  # A fork waits until no other thread holds this lock.


def _release() -> None:
    # If a thread imports this module during another thread's fork(), that fork releases the lock without
    # having taken it.
    with suppress(RuntimeError):
        no_fork.release()


os.register_at_fork(before=no_fork.acquire, after_in_parent=_release, after_in_child=_release)

"""A lock for imports that a child of fork() must not find unfinished.

In the child the thread that imports does not exist, and the module's import never ends.
"""

# An import may log, so a fork must take `no_fork` before the lock of `logging`. It takes the locks of the
# modules that were imported later first.
import logging  # noqa: F401
import os
from contextlib import suppress
from threading import RLock

no_fork = RLock()  # A fork waits until no other thread holds this lock.


def _release() -> None:
    # If a thread imports this module during another thread's fork(), only the end of that fork calls us. It
    # never took the lock.
    with suppress(RuntimeError):
        no_fork.release()


os.register_at_fork(before=no_fork.acquire, after_in_parent=_release, after_in_child=_release)

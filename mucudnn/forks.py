"""Resources that a child of fork() must not inherit.

In the child the parent's other threads do not exist, but their locks are held and their files are open.
"""

# A thread that holds `no_fork` may log, so a fork must take `no_fork` before the lock of `logging`. A fork
# takes the locks of later imports first.
import logging  # noqa: F401
import os
from contextlib import suppress
from threading import RLock
from typing import Protocol, TypeAlias
from weakref import ref


class Closable(Protocol):
    """A resource that is opened again when it is next used."""

    def close(self) -> None:
        """Release the resource."""


no_fork = RLock()  # A fork waits until no other thread holds this lock.

# These references have no callbacks, unlike those of a WeakSet: Python prints and drops the error of a signal
# handler that runs in a callback.
_Resources: TypeAlias = list[ref[Closable]]
_before_fork: _Resources = []
_in_child: _Resources = []


def close_before_fork(resource: Closable) -> None:
    """Close the resource before each fork. The caller holds `no_fork`."""
    _add(_before_fork, resource)


def close_in_child(resource: Closable) -> None:
    """Close the resource in each child of a fork. The caller holds `no_fork`."""
    _add(_in_child, resource)


def _add(resources: _Resources, resource: Closable) -> None:
    there = [known for known in resources if known() not in (None, resource)]
    resources[:] = [*there, ref(resource)]


def _close(resources: _Resources) -> None:
    for resource in [known() for known in resources]:
        if resource is not None:
            resource.close()


def _before() -> None:
    no_fork.acquire()
    _close(_before_fork)


def _release() -> None:
    # If a thread imports this module during another thread's fork(), that fork releases the lock without
    # having taken it.
    with suppress(RuntimeError):
        no_fork.release()


def _after_in_child() -> None:
    _close(_in_child)
    _release()


os.register_at_fork(before=_before, after_in_parent=_release, after_in_child=_after_in_child)

"""Resources that a child of fork() must not inherit, and imports that no fork interrupts.

In the child the parent's other threads do not exist, but their locks are held and their files are open.
"""

# A thread that holds `no_fork` may log, so a fork must take `no_fork` before the lock of `logging`. A fork
# takes the locks of later imports first.
import logging  # noqa: F401
import os
import sys
from _thread import start_new_thread  # an error of a signal handler breaks the start of `threading.Thread`
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from threading import RLock
from typing import Any, Protocol, TypeAlias
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


def load(name: str) -> Any:
    """Import a module in another thread, and return it. The caller must not hold `no_fork`.

    Signal handlers run in the main thread, and `importlib` drops an OSError, such as a TimeoutError, that a
    handler raises during an import. With another thread, the error reaches the caller while the import goes
    on, and a fork waits for the import to end.
    """
    if name in sys.modules:
        return import_module(name)
    loaded = Future[Any]()

    def run() -> None:
        try:
            with no_fork:
                loaded.set_result(import_module(name))
        except BaseException as error:
            loaded.set_exception(error)

    start_new_thread(run, ())
    return loaded.result()

"""Imports on first use."""

import sys
from _thread import start_new_thread  # an error of a signal handler breaks the start of `threading.Thread`
from concurrent.futures import Future
from importlib import import_module
from typing import Any

from mucudnn.forks import no_fork


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

"""Tuning in the background: a thread decides about calls while the program waits between two steps.

Until then the program runs PyTorch's own convolutions. A step ends when a module is called for the second
time. The program then waits for the thread, for a share of the time that the step took, so that nothing
disturbs the measurements. While the program runs, the thread holds no lock, no claim and no measuring memory.
"""

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Hashable

SHARE = 0.5  # the program waits for the thread for this share of a step's time
_MOST_CREDIT_S = 5.0
_MOST_WAITING = 256  # pieces of work, of about 20 KB each
Work = Generator[None, None, None]
_logger = logging.getLogger("mucudnn")


class Tuner:
    """A thread that makes progress with its work only while a program waits in `wait_after_step`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._work: dict[Hashable, Work] = {}  # the oldest first
        self._working: Hashable = None  # the call whose work has begun
        self._changed = threading.Condition()
        self._waiting = 0  # threads of the program
        self._stopped = False
        self._credit_s, self._since = 0.0, clock()
        self._called: set[Hashable] = set()  # the modules that were called in this step
        self._thread: threading.Thread | None = None

    def submit(self, call: Hashable, work: Work) -> None:
        """Take work that decides about a call, unless it has some already. Each yield ends a part.

        If too much work waits, the oldest is dropped, and submitted again when its call comes up again.
        """
        with self._changed:
            if call in self._work or self._stopped:
                return
            if self._thread is None and not self._start():
                return
            if len(self._work) >= _MOST_WAITING:
                del self._work[next(waiting for waiting in self._work if waiting != self._working)]
            self._work[call] = work

    def has(self, call: Hashable) -> bool:
        """Return whether there is unfinished work about a call."""
        return call in self._work

    def wait_after_step(self, module: Hashable) -> None:
        """Wait for the thread if this is the second call to `module`, which means that a step has ended."""
        if not self._called:
            self._since = self._clock()
        if module not in self._called:
            self._called.add(module)
            return
        self._called = {module}
        with self._changed:
            # A pause, as in a notebook, must not cause a long wait.
            self._credit_s += min(SHARE * (self._clock() - self._since), _MOST_CREDIT_S)
            self._waiting += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._credit_s <= 0 or not self._work or self._stopped)
            finally:  # even if the user interrupts: the thread then finishes its part and waits
                self._waiting -= 1
                self._since = self._clock()

    def stop(self) -> None:
        """Stop the thread after the current part of its work, and join it."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _start(self) -> bool:
        """Start the thread. Return False if that fails, as when the interpreter shuts down."""
        thread = threading.Thread(target=self._run, name="mucudnn tunes", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._stopped = True
            return False
        self._thread = thread
        return True

    def _run(self) -> None:
        while (work := self._next_work()) is not None:
            start = self._clock()
            is_done = _make_progress(work)
            with self._changed:
                self._credit_s -= self._clock() - start
                if is_done:
                    del self._work[self._working]
                    self._working = None
                self._changed.notify_all()

    def _next_work(self) -> Work | None:
        """Wait until the program waits for work, and return that work; None after `stop`."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or (self._waiting and self._work and self._credit_s > 0)
            )
            if self._stopped:
                return None
            if self._working is None:
                self._working = next(iter(self._work))
            return self._work[self._working]


def _make_progress(work: Work) -> bool:
    """Do one part of the work, and return whether all of it is done."""
    try:
        next(work)
    except StopIteration:
        return True
    except Exception as error:  # an error of ours must not end the user's training
        _logger.warning("mucudnn leaves a convolution to PyTorch: %s", error)
        return True
    return False


_tuner = Tuner()


def tuner() -> Tuner:
    """Return the process's tuner."""
    return _tuner


def _renew() -> None:
    """Replace the tuner in a child of fork(), which has no copy of the thread."""
    global _tuner
    _tuner = Tuner()


os.register_at_fork(after_in_child=_renew)
atexit.register(lambda: _tuner.stop())

"""Errors of signal handlers, raised at a chosen moment of some work.

Python runs a handler when a C function has returned or when a Python function begins. A profile function is
called there, too, so a test can try each of these moments.
"""

import gc
import sys
from collections.abc import Callable
from traceback import walk_stack
from types import FrameType

ERRORS = (TimeoutError, ValueError, RuntimeError, KeyboardInterrupt, SystemExit)


class Handler:
    """A handler that raises an error when it is called for the n-th time."""

    def __init__(self, error: BaseException | None = None, moment: int = 0) -> None:
        self.calls, self.raised_in = 0, ""
        self._error, self._moment = error, moment

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_return") and frame.f_code is not run_under.__code__:
            self.calls += 1
            if self._error is not None and self.calls == self._moment:
                stack = [f"{at.f_code.co_qualname}:{line}" for at, line in walk_stack(frame)]
                self.raised_in = " < ".join(stack[:8])
                raise self._error


def run_under(handler: Handler, work: Callable[[], object]) -> BaseException | None:
    """Do the work. Return the error that comes out of it.

    The garbage collector is off meanwhile, because it swallows errors of the callbacks of other packages.
    """
    gc.disable()
    sys.setprofile(handler)
    try:
        work()
    except BaseException as error:
        return error
    finally:
        sys.setprofile(None)
        gc.enable()
    return None


def moments_of(work: Callable[[], object]) -> int:
    """Return at how many moments a handler can interrupt the work."""
    handler = Handler()
    assert run_under(handler, work) is None
    return handler.calls

"""The messages and the progress of commands on stderr, and the user's cache while they measure."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mucudnn.costs.cache import Cache
from mucudnn.errors import InterruptedByUserError
from mucudnn.listener import Listener, ProgressBar
from mucudnn.output.printable import printable
from mucudnn.output.streams import fill


class Terminal(ProgressBar):
    """A listener that prints messages on stderr, and shows progress there if that is a terminal."""

    def message(self, text: str) -> None:
        """Print a text on stderr: one line, unless a terminal is narrower."""
        # One write, because after an interrupt without the newline another process would continue this line.
        print(f"{fill(printable(text), sys.stderr)}\n", end="", file=sys.stderr, flush=True)


@contextmanager
def opened_cache(terminal: Listener, *, needed: bool) -> Iterator[Cache]:
    """Open the user's cache with `Cache.of_user`.

    An interrupt inside becomes an InterruptedByUserError that says where the measurements are kept.
    Raises MucudnnError.
    """
    with Cache.of_user(terminal, needed=needed) as cache:
        try:
            yield cache
        except KeyboardInterrupt:
            kept = f"what was measured is kept in {cache.path}" if cache.kept else "nothing was kept"
            raise InterruptedByUserError(f"interrupted: {kept}") from None

"""Read what programs write on a terminal."""

import os


def read_terminal(ours: int) -> bytes:
    """Return what is written on a pseudo-terminal until its programs have ended, and close our end of it."""
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # the programs have closed their end
        pass
    os.close(ours)
    return shown

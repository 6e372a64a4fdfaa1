"""The wish to measure again what earlier processes measured: MUCUDNN_REMEASURE=1, or a call or a flag."""

from datetime import UTC, datetime

from mucudnn import settings

_START = datetime.now(UTC).isoformat(timespec="seconds")
_since = ""


def remeasure_from_now_on() -> None:
    """Let this process use only measurements that it, or another process, makes from now on."""
    global _since
    _since = datetime.now(UTC).isoformat(timespec="seconds")


def remeasuring_since() -> str:
    """Return the time, in ISO 8601, before which measurements do not count; empty if all of them count.

    Raise UsageError if MUCUDNN_REMEASURE cannot be read.
    """
    return _since or (_START if settings.REMEASURE.read() == "1" else "")

"""The journal: what programs under `mucudnn run` learned, in plan documents one behind the other.

The drop-in appends to it, and later drop-ins read it, so it stays when it was taken into the cache.
"""

import fcntl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mucudnn import __version__
from mucudnn._native import MOST_SLICES_IN_PLACE, Problem, accumulator_size, parse_journal
from mucudnn.cache import Cache
from mucudnn.descriptor import problem_key
from mucudnn.errors import MucudnnError
from mucudnn.exchange import ENUMERATION, MEASUREMENT, Row
from mucudnn.records import CANNOT_ACCUMULATE, SUCCESS


def journal_of(cache: Path) -> Path:
    """Where the journal of a cache is: native/shim/measurements.cpp has the same name."""
    return cache.with_name(cache.name + ".journal")


def take_journal(cache: Path, *, forget: bool = False) -> None:
    """Take the journal of a cache into it; taking it again changes nothing.

    With `forget` the journal is emptied, so that programs measure anew what is deleted from the cache.
    Raises MucudnnError.
    """
    path = journal_of(cache)
    try:
        with path.open("r+" if forget else "r", encoding="utf-8", errors="replace") as file:
            fcntl.flock(file, fcntl.LOCK_EX if forget else fcntl.LOCK_SH)
            rows = list(rows_of(file.read()))
            if rows:
                with Cache.open(cache) as opened:
                    opened.merge(rows)
            if forget:
                file.truncate(0)
    except FileNotFoundError:
        return
    except OSError as error:
        raise MucudnnError(f"the journal {path} cannot be read: {error.strerror}") from None


def rows_of(text: str) -> Iterator[Row]:
    """The rows of all documents that can be read."""
    for header, measured, candidates in parse_journal(text):
        with suppress(ValueError, KeyError):  # a header that is not of a journal
            is_host = header["engine"] == "host"
            whose = {
                **{name: header[name] for name in ("engine", "device", "library")},
                "threads": int(header["threads"]),
                "measured_at": _time(header["measured_at"]),
                "version": __version__,
            }
            for problem, pass_, algorithm, time_ms, workspace, notes in measured:
                result = {
                    "algorithm": algorithm,
                    "status": SUCCESS,
                    "workspace": workspace,
                    "notes": notes,
                    "median_ms": time_ms,
                    "spread_ms": None,
                    "accumulator": _accumulator(problem, pass_, sums=is_host),
                }
                yield MEASUREMENT, {**whose, **_kernel(problem, pass_), **result}
            for problem, pass_, api, text in candidates:
                if api == _api_of_engine(problem, is_host=is_host):
                    yield ENUMERATION, {**whose, **_kernel(problem, pass_), "candidates": text}


def _kernel(problem: Problem, pass_: str) -> dict[str, Any]:
    return {"problem": problem_key(problem), "pass": pass_, "micro_batch": problem.mini_batch}


def _api_of_engine(problem: Problem, *, is_host: bool) -> str:
    """The API whose candidates are those that an Engine enumerates: see native/bindings/engine.cpp."""
    return "legacy" if is_host and not problem.epilogue else "graph"


def _accumulator(problem: Problem, pass_: str, *, sums: bool) -> int:
    """Of any division into more slices than are summed in place; `sums`: the device can sum them in fp32."""
    size = accumulator_size(problem, pass_, MOST_SLICES_IN_PLACE + 1)
    return CANNOT_ACCUMULATE if size is None or (size and not sums) else size


def _time(seconds: str) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat(timespec="seconds")

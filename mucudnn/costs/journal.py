"""The journal: what programs under `mucudnn run` learned, in plan documents one behind the other.

The drop-in appends to it, and later drop-ins read it, so it stays when it was taken into the cache.
"""

import fcntl
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from mucudnn._native import MOST_SLICES_IN_PLACE, Problem, accumulator_size, parse_journal
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import CANNOT_ACCUMULATE, SUCCESS, Machine, Measurement
from mucudnn.costs.schema import ENUMERATION, MEASUREMENT, Row
from mucudnn.errors import MucudnnError
from mucudnn.problems.kernels import Kernel


def journal_of(cache: Path) -> Path:
    """Return the path of a cache's journal. native/shim/decisions/decider.cpp has the same name."""
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
    """Yield the rows of all documents that can be read."""
    for header, measured, candidates in parse_journal(text):
        with suppress(ValueError, KeyError):  # a header that is not of a journal
            is_host = header["engine"] == "host"
            machine = Machine(header["engine"], header["device"], header["library"], int(header["threads"]))
            time = _time(header["measured_at"])
            for problem, pass_, algorithm, time_ms, workspace, notes in measured:
                kernel = Kernel(problem, pass_)
                accumulator = _accumulator(kernel, sums=is_host)
                one = Measurement(
                    problem.mini_batch, algorithm, SUCCESS, workspace, notes, time_ms, None, accumulator
                )
                yield MEASUREMENT, MEASUREMENT.row(machine, kernel, vars(one), measured_at=time)
            for problem, pass_, api, text in candidates:
                if api == _api_of_engine(problem, is_host=is_host):
                    listed = {"micro_batch": problem.mini_batch, "candidates": text}
                    yield (
                        ENUMERATION,
                        ENUMERATION.row(machine, Kernel(problem, pass_), listed, measured_at=time),
                    )


def _api_of_engine(problem: Problem, *, is_host: bool) -> str:
    """Return the API whose candidates an Engine enumerates: see native/bindings/engine.cpp."""
    return "legacy" if is_host and not problem.epilogue else "graph"


def _accumulator(kernel: Kernel, *, sums: bool) -> int:
    """Return the bytes for more slices than are summed in place; `sums`: the device sums them in fp32."""
    size = accumulator_size(kernel, MOST_SLICES_IN_PLACE + 1)
    return CANNOT_ACCUMULATE if size is None or (size and not sums) else size


def _time(seconds: str) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat(timespec="seconds")

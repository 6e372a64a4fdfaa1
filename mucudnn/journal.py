"""The journal: what programs under `mucudnn run` measured, in plan documents one behind the other.

The drop-in appends to it, and later drop-ins read it, so it stays when it was taken into the cache.
"""

import fcntl
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mucudnn import __version__
from mucudnn._native import MOST_SLICES_IN_PLACE, accumulator_size
from mucudnn.cache import Cache
from mucudnn.descriptor import problem_key
from mucudnn.errors import MucudnnError
from mucudnn.exchange import MEASUREMENT, Row
from mucudnn.plan import Plan, PlanKernel
from mucudnn.records import CANNOT_ACCUMULATE, SUCCESS

# Cut off, a document has no last line; the next one may then begin in the middle of a line.
_DOCUMENT = re.compile(r"mucudnn plan (?:(?!mucudnn plan ).)*?\nend \d+\n", re.DOTALL)


def journal_of(cache: Path) -> Path:
    """Where the journal of a cache is: native/shim/decider.cpp has the same name."""
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
    for document in _DOCUMENT.findall(text):
        with suppress(ValueError, KeyError):  # damaged, or of a newer version
            plan = Plan.parse(document)
            whose = {
                **{name: plan.header[name] for name in ("engine", "device", "library")},
                "threads": int(plan.header["threads"]),
                "measured_at": _time(plan.header["measured_at"]),
            }
            for kernel in plan.kernels:
                rows = _rows(kernel, sums=whose["engine"] == "host")
                yield from ((MEASUREMENT, {**whose, **row}) for row in rows)


def _rows(kernel: PlanKernel, *, sums: bool) -> Iterator[dict[str, Any]]:
    """The rows of a kernel; `sums` says whether its device can sum slices in fp32."""
    # The same for every division into more slices than are summed in place.
    accumulator = accumulator_size(kernel.problem, kernel.pass_, MOST_SLICES_IN_PLACE + 1)
    for option in kernel.desirable:
        part = option.parts[0]
        yield {
            "problem": problem_key(kernel.problem),
            "pass": kernel.pass_,
            "micro_batch": part.micro_batch,
            "algorithm": part.algorithm,
            "status": SUCCESS,
            "workspace": part.workspace,
            "notes": "",
            "median_ms": part.time_ms,
            "spread_ms": None,
            "accumulator": accumulator if sums or not accumulator else CANNOT_ACCUMULATE,
            "version": __version__,
        }


def _time(seconds: str) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat(timespec="seconds")

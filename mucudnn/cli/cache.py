"""`mucudnn cache`: show the cache, and carry measurements between hosts."""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

from mucudnn._native import parse_descriptor
from mucudnn.cli import options, outputs
from mucudnn.cli.terminal import Terminal
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.exchange import format_rows, parse_rows
from mucudnn.costs.file import CacheError, is_cache
from mucudnn.costs.journal import journal_of, prune_journal
from mucudnn.costs.recorded import recorded_rows
from mucudnn.costs.schema import Row
from mucudnn.errors import MucudnnError, shown
from mucudnn.input import read_packed
from mucudnn.output.answers import Answer, Lines, show, table
from mucudnn.output.files import write_lines
from mucudnn.output.streams import results
from mucudnn.problems.descriptor import short_text
from mucudnn.sizes import format_size

HELP = "look at the cache of measurements, and carry it between hosts"
DESCRIPTION = (
    "The cache keeps every measurement, and the algorithms that can run; MUCUDNN_CACHE names another file."
)
EXAMPLES = (
    "mucudnn cache info",
    "mucudnn cache export --output rows.jsonl",
    "mucudnn cache prune --older-than 90",
)

_WINS = (
    " If two rows have the same machine, kernel, and size, algorithm or configurations, the later "
    "measurement wins; of equally old rows, the existing one stays. But a time from many runs wins over one "
    "from a race, and both win over one that other programs disturbed. An error leaves the cache unchanged, "
    "and adding the same rows again changes nothing."
)
_NEXT_TO_NOTHING = "Next: mucudnn optimize alexnet"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = options.add_actions(
        parser,
        (
            _info, "print where the cache is, and how much is in it, machine by machine", "",
            ["mucudnn cache info"], [],
        ),
        (
            _list, "print the kernels in it, and how many of their times other programs disturbed", "",
            ["mucudnn cache list"], [],
        ),
        (
            _export, "write it as JSON lines, which any version and tool can read", "",
            ["mucudnn cache export --output rows.jsonl"],
            [("--output FILE", outputs.ROWS.parse, "write to this file instead of the standard output")],
        ),
        (
            _import, "add the rows of other hosts' caches", _WINS,
            ["mucudnn cache import other.sqlite rows.jsonl"],
            [(
                "files FILE+", options.parse_path,
                "a cache, as `mucudnn cache info` names it there; a file that export wrote; or times that "
                "others recorded on GPUs: dlperf's JSON or a table of it, or MIOpen's find-db, *.fdb.txt. "
                "gzip, xz or bzip2 may have packed it",
            )],
        ),
        (
            _prune, "delete rows by age, library or device", "", ["mucudnn cache prune --older-than 90"], [],
        ),
    )  # fmt: skip
    options.add_arguments(
        actions["prune"].add_mutually_exclusive_group(required=True),
        ("--older-than DAYS", options.whole("number of days", 36500, 0), "rows older than this many days"),
        ("--library NAME", str, "rows of this library, as `mucudnn cache info` shows it"),
        ("--device NAME", str, "rows of this device, as `mucudnn cache info` shows it"),
    )


def run(arguments: argparse.Namespace) -> Answer | None:
    """Run the action on the cache, after adding the journal that programs under the drop-in wrote."""
    path = default_path()
    journal = journal_of(path)
    if arguments.action is not _prune and journal.exists() and journal.stat().st_size:
        # A read-only cache is shown without the journal.
        with suppress(CacheError):
            Cache.of_user(Terminal(), needed=True).__exit__()
    answer: Answer | None = arguments.action(path, arguments)
    return answer


@dataclass(frozen=True)
class Changed(Answer):
    """The number of rows that an action added to the cache or deleted from it."""

    path: Path
    rows: int
    change: str

    def lines(self) -> Lines:
        """Yield the number, and the next command."""
        yield f"{self.rows} row{'s' * (self.rows != 1)} {self.change} {self.path}"
        yield "Next: mucudnn cache info"


def _import(path: Path, arguments: argparse.Namespace) -> Answer:
    with ExitStack() as stack:
        rows = [_read_rows(file, stack) for file in arguments.files]
        with Cache.open(path, listener=Terminal()) as cache:
            taken = cache.merge(chain.from_iterable(rows))
    return Changed(path, taken, "added to")


def _read_rows(file: Path, stack: ExitStack) -> Iterator[Row]:
    """Return the rows of a cache, or of a file of ours or of another project. Raises MucudnnError."""
    has_rows = False
    with suppress(MucudnnError, OSError):  # if it is not a cache, it may be an export
        has_rows = is_cache(file)
    if has_rows:
        return stack.enter_context(Cache.read_only(file)).rows()
    try:
        text = read_packed(file).decode()
        rows = recorded_rows(text, file)
        return parse_rows(StringIO(text), str(file)) if rows is None else iter(rows)
    except OSError as error:
        raise MucudnnError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        reason = "it is not text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise MucudnnError(f"{file} cannot be imported: {reason}") from None


def _export(path: Path, arguments: argparse.Namespace) -> None:
    with Cache.read_only(path) as cache:
        lines = format_rows(cache.rows())
        if arguments.output:
            write_lines(arguments.output, lines)
            show(f"Next: mucudnn cache import {arguments.output}")
        else:
            results().writelines(lines)


def _prune(path: Path, arguments: argparse.Namespace) -> Answer:
    with Cache.open(path, listener=Terminal()) as cache:
        if arguments.older_than is not None:
            then = datetime.now(UTC) - timedelta(days=arguments.older_than)
            prune_journal(path, lambda header: int(header["measured_at"]) < then.timestamp())
            removed = cache.remove("measured_at", "<", then.isoformat(timespec="seconds"))
        else:
            column = "device" if arguments.library is None else "library"
            name = getattr(arguments, column)
            prune_journal(path, lambda header: header[column] == name)
            removed = cache.remove(column, "=", name)
    return Changed(path, removed, "deleted from")


_COUNTED = (
    "enumerations", "measurements", "failures", "comparisons", "step_times", "trials",
)  # fmt: skip
# The rank 0 is that of predictions.
_MACHINES = f"""
    WITH counted AS (
      SELECT device, library, threads, CASE
        WHEN kind = 'measurement' AND json_extract(content, '$.time_ms') ISNULL THEN 'failures'
        ELSE kind || 's' END AS name
      FROM rows WHERE rank > 0
    )
    SELECT device, library, threads, {", ".join(f"sum(name = '{name}')" for name in _COUNTED)}
    FROM counted GROUP BY device, library, threads
"""

_KERNELS = """
    SELECT problem, pass, device, library, threads,
      count(DISTINCT json_extract(content, '$.micro_batch')), count(json_extract(content, '$.time_ms')),
      count(CASE WHEN json_extract(content, '$.busy_tries') THEN json_extract(content, '$.time_ms') END)
    FROM rows WHERE kind IN ('measurement', 'enumeration') GROUP BY device, library, threads, problem, pass
"""

_MACHINE_KEYS = ("device", "library", "threads", *_COUNTED)
_KERNEL_KEYS = ("problem", "pass", "device", "library", "threads", "sizes", "measured", "disturbed")


@dataclass(frozen=True)
class Info(Answer):
    """The size of the cache, and the rows of each machine."""

    path: Path
    exists: bool = False
    bytes: int = 0
    version: int | None = None
    machines: tuple[dict[str, Any], ...] = ()

    def lines(self) -> Lines:
        """Yield lines about each machine, with its device and library on lines to copy into `prune`."""
        if not self.exists:
            yield from (f"{self.path} does not exist yet", _NEXT_TO_NOTHING)
            return
        yield f"{self.path}: {format_size(self.bytes)}, version {self.version}"
        for machine in self.machines:
            counts = ", ".join(f"{machine[key]} {key.replace('_', ' ')}" for key in _COUNTED)
            yield "\n".join(["", *(f"{key}: {machine[key]}" for key in _MACHINE_KEYS[:3]), counts])
        yield ""
        yield "Next: mucudnn cache list"


def _info(path: Path, arguments: argparse.Namespace) -> Answer:
    if not path.exists():
        return Info(path)
    with Cache.read_only(path) as cache:
        ((version,),) = cache.query("PRAGMA user_version")
        counts = cache.query(_MACHINES)
    machines = (dict(zip(_MACHINE_KEYS, row, strict=True)) for row in counts)
    return Info(path, True, path.stat().st_size, version, tuple(machines))


@dataclass(frozen=True)
class Kernels(Answer):
    """The kernels in the cache, with the numbers of their sizes, their times and their disturbed times."""

    path: Path
    kernels: list[dict[str, Any]]

    def lines(self) -> Lines:
        """Yield a table of the kernels."""
        if not self.kernels:
            yield from (f"{self.path} has no kernel yet", _NEXT_TO_NOTHING)
            return
        several = len({row["library"] for row in self.kernels}) > 1  # a single library needs no column
        yield table(
            *["library"] * several, "kernel", "pass", ">threads", ">sizes", ">measured", ">disturbed",
            rows=({**row, "kernel": _format_kernel(row["problem"])} for row in self.kernels),
        )  # fmt: skip


def _list(path: Path, arguments: argparse.Namespace) -> Answer:
    if not path.exists():
        return Kernels(path, [])
    with Cache.read_only(path) as cache:
        return Kernels(path, [dict(zip(_KERNEL_KEYS, row, strict=True)) for row in cache.query(_KERNELS)])


def _format_kernel(key: Any) -> str:
    """Return a short text for the problem that a row names."""
    try:
        return short_text(parse_descriptor(key)[0], mini_batch=False)
    except (TypeError, ValueError):
        return f"damaged: {shown(key)}"

"""`mucudnn cache`: show the cache, and carry measurements between hosts."""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from rich.table import Table

from mucudnn.cli import options, outputs
from mucudnn.cli.cached_checks import format_kernel, summarize_checks
from mucudnn.cli.cached_choices import ALGORITHM, DIVIDED, LEFT, CachedChoices
from mucudnn.cli.examples import format_examples
from mucudnn.cli.terminal import Terminal, show, show_json, table
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.exchange import format_rows, parse_rows
from mucudnn.costs.file import CacheError
from mucudnn.costs.journal import JournalError, journal_of, take_journal
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.input import read_packed
from mucudnn.output.files import write_lines
from mucudnn.output.streams import results
from mucudnn.output.text import milliseconds
from mucudnn.sizes import format_size, spell_limit

HELP = "look at the cache of measurements, and carry it between hosts"
DESCRIPTION = (
    "The cache keeps every measurement, and the algorithms that can run; MUCUDNN_CACHE names another file."
)
EXAMPLES = (
    "mucudnn cache info",
    "mucudnn cache export --output rows.jsonl",
    "mucudnn cache prune --older-than 90",
)

Action: TypeAlias = Callable[[Path, argparse.Namespace], None]

_WINS = (
    "If two rows have the same machine, kernel, and size, algorithm or configurations, the later measurement "
    "wins; of equally old rows, the existing one stays. But a time from many runs wins over one from a race, "
    "and both win over one that other programs disturbed. An error leaves the cache unchanged, and adding "
    "the same rows again changes nothing."
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    def declare(
        name: str, action: Action, text: str, more: str = "", example: str = ""
    ) -> argparse.ArgumentParser:
        sentence = text[0].upper() + text[1:] + "."
        declared = actions.add_parser(
            name,
            help=text,
            description=f"{sentence} {more}".strip(),
            epilog=format_examples(f"mucudnn cache {name} {example}".strip()),
        )
        declared.set_defaults(action=action)
        if action is not _export:  # its rows are JSON already
            options.add_json(declared)
        return declared

    declare("path", _path, "print where the cache is")
    declare("info", _info, "print how much is in it, machine by machine")
    declare(
        "list",
        _list,
        "print the kernels in it, and the choices that their measurements lead to",
        "The choices are for the largest measured mini-batch, within MUCUDNN_WORKSPACE_LIMIT.",
    )
    declare(
        "check",
        _check,
        "print the measurements that other programs disturbed",
        "They are made again in later runs. Comparisons of steps that no later comparison has confirmed yet "
        "are printed, too.",
    )
    merging = declare("merge", _merge, "add the rows of other hosts' caches", _WINS, "other.sqlite")
    merging.add_argument(
        "files",
        nargs="+",
        type=options.checked(options.parse_path),
        metavar="FILE",
        help="a cache, as `mucudnn cache path` names it there",
    )
    exporting = declare(
        "export",
        _export,
        "write it as JSON lines, which any version and tool can read",
        example="--output rows.jsonl",
    )
    outputs.add_output(exporting, "FILE", "write to this file instead of the standard output")
    importing = declare("import", _import, "add the rows that export wrote", _WINS, "rows.jsonl")
    importing.add_argument(
        "file",
        type=options.checked(options.parse_path),
        metavar="FILE",
        help="a file that export wrote; it may be packed by gzip",
    )
    pruning = declare("prune", _prune, "delete rows by age, library or device", example="--older-than 90")
    which = pruning.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--older-than",
        type=options.checked(parse_days),
        metavar="DAYS",
        help="rows older than this many days",
    )
    for part in ("library", "device"):
        text = f"rows of this {part}, as `mucudnn cache info` shows it"
        which.add_argument(f"--{part}", metavar="NAME", help=text)


def parse_days(text: str) -> int:
    """Parse a number of days from 0 to 36500. Raises UsageError."""
    if not text.isascii() or not text.isdigit() or int(text) > 36500:
        raise UsageError(f"'{text}' is not a number of days from 0 to 36500")
    return int(text)


def run(arguments: argparse.Namespace) -> None:
    """Run the action on the cache, after adding the journal that programs under the drop-in wrote."""
    path = default_path()
    journal = journal_of(path)
    if arguments.action not in (_path, _prune) and journal.exists() and journal.stat().st_size:
        # A read-only cache is shown without the journal.
        with suppress(CacheError), Cache.open(path, listener=Terminal()) as cache:
            try:
                take_journal(cache)
            except JournalError as error:
                Terminal().message(f"Warning: {error}")
    arguments.action(path, arguments)


def _path(path: Path, arguments: argparse.Namespace) -> None:
    _print(arguments, {"path": str(path), "exists": path.exists()}, str(path))


def _merge(path: Path, arguments: argparse.Namespace) -> None:
    with ExitStack() as stack:
        others = [stack.enter_context(Cache.read_only(file)) for file in arguments.files]
        mine = stack.enter_context(Cache.open(path, listener=Terminal()))
        taken = mine.merge(chain.from_iterable(other.rows() for other in others))
    _print_change(path, arguments, "rows_taken", taken, "added to")


def _import(path: Path, arguments: argparse.Namespace) -> None:
    file = arguments.file
    try:
        lines = StringIO(read_packed(file).decode())
    except OSError as error:
        raise MucudnnError(f"{file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        reason = "it is not text" if isinstance(error, UnicodeDecodeError) else str(error)
        raise MucudnnError(f"{file} is not what mucudnn cache export writes: {reason}") from None
    with Cache.open(path, listener=Terminal()) as cache:
        taken = cache.merge(parse_rows(lines, str(file)))
    _print_change(path, arguments, "rows_taken", taken, f"of {file} added to")


def _export(path: Path, arguments: argparse.Namespace) -> None:
    outputs.check(arguments.output, outputs.ROWS, force=arguments.force)
    with Cache.read_only(path) as cache:
        lines = format_rows(cache.rows())
        if not arguments.output:
            results().writelines(lines)
            return
        write_lines(arguments.output, lines)
    show(f"{path} is now in {arguments.output} too", f"Next: mucudnn cache import {arguments.output}")


def _prune(path: Path, arguments: argparse.Namespace) -> None:
    with Cache.open(path, listener=Terminal()) as cache:
        if arguments.older_than is not None:
            then = datetime.now(UTC) - timedelta(days=arguments.older_than)
            take_journal(cache, lambda header: int(header["measured_at"]) < then.timestamp())
            removed = cache.remove("measured_at", "<", then.isoformat(timespec="seconds"))
        else:
            column = "device" if arguments.library is None else "library"
            name = getattr(arguments, column)
            take_journal(cache, lambda header: header[column] == name)
            removed = cache.remove(column, "=", name)
    _print_change(path, arguments, "rows_deleted", removed, "deleted from")


def _print(arguments: argparse.Namespace, content: dict[str, Any], *lines: Table | str) -> None:
    """Print the object as JSON with --json, else the lines."""
    if arguments.json:
        show_json(content)
    else:
        show(*lines)


def _print_change(path: Path, arguments: argparse.Namespace, key: str, count: int, change: str) -> None:
    """Print how many rows of the cache a command added or deleted."""
    counted = f"{count} row{'s' * (count != 1)} {change} {path}"
    _print(arguments, {"path": str(path), key: count}, counted, "Next: mucudnn cache info")


_COUNTED = (
    "enumerations", "measurements", "failures", "comparisons", "group_comparisons", "step_times", "trials",
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
      count(DISTINCT json_extract(content, '$.micro_batch')), count(json_extract(content, '$.time_ms'))
    FROM rows WHERE kind IN ('measurement', 'enumeration') GROUP BY device, library, threads, problem, pass
"""

_MACHINE_KEYS = ("device", "library", "threads", *_COUNTED)
_KERNEL_KEYS = ("problem", "pass", "device", "library", "threads", "sizes", "measured")


def _info(path: Path, arguments: argparse.Namespace) -> None:
    if not path.exists():
        nothing = {"path": str(path), "exists": False, "bytes": 0, "version": None, "machines": []}
        _print(arguments, nothing, f"{path} does not exist yet", "Next: mucudnn benchmark alexnet")
        return
    with Cache.read_only(path) as cache:
        ((version,),) = cache.query("PRAGMA user_version")
        counts = cache.query(_MACHINES)
    size = path.stat().st_size
    machines = [dict(zip(_MACHINE_KEYS, row, strict=True)) for row in counts]
    _print(
        arguments,
        {"path": str(path), "exists": True, "bytes": size, "version": version, "machines": machines},
        f"{path}: {format_size(size)}, version {version}",
        *(line for machine in machines for line in _describe(machine)),
        "",
        "Next: mucudnn cache list",
    )


def _describe(machine: dict[str, Any]) -> Iterator[str]:
    """Yield lines about a machine, with its device and library alone on a line to copy into `cache prune`."""
    yield ""
    yield from (f"{key}: {machine[key]}" for key in _MACHINE_KEYS[:3])
    yield ", ".join(f"{machine[key]} {key.replace('_', ' ')}" for key in _COUNTED)


def _list(path: Path, arguments: argparse.Namespace) -> None:
    if not path.exists():
        nothing = {"path": str(path), "kernels": []}
        _print(arguments, nothing, f"{path} does not exist yet", "Next: mucudnn benchmark alexnet")
        return
    kernels, ways, lines = [], Counter[str](), []
    with Cache.read_only(path) as cache:
        choices = CachedChoices(cache)
        for row in cache.query(_KERNELS):
            key, pass_, _, library, threads, _, measured = row
            choice, cells = choices.find(*row[:5]), ["–"] * 4
            if choice is not None:
                ways[choice.way] += 1
                ways["busy"] += choice.is_busy
                state = "busy" if choice.is_busy else "quiet"
                cells = [str(choice.mini_batch), choice.configuration, milliseconds(choice.time_ms), state]
            if library not in choices.frameworks:  # the choices of an engine have these rows
                lines.append([library, format_kernel(key), pass_, str(threads), str(measured), *cells])
            chosen = None if choice is None else choice._asdict()
            kernels.append({**dict(zip(_KERNEL_KEYS, row, strict=True)), "choice": chosen})
    hidden = int(len({library for library, *_ in lines}) == 1)  # a single library needs no column
    heads = ("library", "kernel", "pass", ">threads", ">measured", ">N", "choice", ">ms", "machine")
    rows = table(*heads[hidden:])
    for line in lines:
        rows.add_row(*line[hidden:])
    content = {"path": str(path), "kernels": kernels}
    counts = ", ".join(f"{ways[way]} {way}" for way in (DIVIDED, ALGORITHM, LEFT))
    busy = f"{ways['busy']} of them from a busy machine, see mucudnn cache check"
    _print(arguments, content, rows, "", f"Choices within {spell_limit(choices.limit)}: {counts}; {busy}")


def _check(path: Path, arguments: argparse.Namespace) -> None:
    content, lines = summarize_checks(path)
    _print(arguments, {"path": str(path), **content}, *lines)

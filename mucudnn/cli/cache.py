"""`mucudnn cache`: where the measurements are, and what is in them."""

import argparse
from pathlib import Path

from mucudnn._native import parse_descriptor
from mucudnn.cache import Cache, default_path
from mucudnn.cache_file import VERSION
from mucudnn.cli.terminal import show, table
from mucudnn.descriptor import short_text
from mucudnn.sizes import format_size

HELP = "show the cache of measurements"
DESCRIPTION = "The cache keeps every measurement; MUCUDNN_CACHE names another file."


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    for name, action, text in (
        ("path", _path, "print where the cache is"),
        ("info", _info, "print how much is in it, machine by machine"),
        ("list", _list, "print the kernels in it"),
    ):
        actions.add_parser(name, help=text, description=text).set_defaults(action=action)


def run(arguments: argparse.Namespace) -> None:
    """Show what was asked for."""
    arguments.action(default_path())


def _path(path: Path) -> None:
    print(path)


_MACHINES = """
    SELECT device, library, threads, count(median_ms), count(*) - count(median_ms),
      (SELECT count(*) FROM comparisons c
       WHERE (c.device, c.library, c.threads) = (m.device, m.library, m.threads))
    FROM measurements m GROUP BY device, library, threads ORDER BY device, library, threads
"""

_KERNELS = """
    SELECT problem, pass, library, threads, count(DISTINCT micro_batch), count(median_ms)
    FROM measurements GROUP BY device, library, threads, problem, pass
    ORDER BY device, library, threads, problem, pass
"""


def _info(path: Path) -> None:
    if not path.exists():
        show(f"{path} does not exist yet", "Next: mucudnn benchmark alexnet")
        return
    rows = table()
    for name in ("device", "library"):
        rows.add_column(name, overflow="fold")
    for name in ("threads", "measurements", "failures", "comparisons"):
        rows.add_column(name, justify="right")
    with Cache.read_only(path) as cache:
        found = cache.query(_MACHINES)
    for row in found:
        rows.add_row(*map(str, row))
    show(
        f"{path}: {format_size(path.stat().st_size)}, version {VERSION}",
        "",
        rows,
        "",
        "Next: mucudnn cache list",
    )


def _list(path: Path) -> None:
    if not path.exists():
        show(f"{path} does not exist yet", "Next: mucudnn benchmark alexnet")
        return
    rows = table()
    for name in ("kernel", "pass", "library"):
        rows.add_column(name, overflow="fold")
    for name in ("threads", "sizes", "measured"):
        rows.add_column(name, justify="right")
    with Cache.read_only(path) as cache:
        found = cache.query(_KERNELS)
    for key, *cells in found:
        problem, _, _ = parse_descriptor(key)
        rows.add_row(short_text(problem, mini_batch=False), *map(str, cells))
    show(rows)

"""Files that commands write. A file that exists is only replaced if it is of the kind that is written."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mucudnn._native import parse_descriptor
from mucudnn.cli import options
from mucudnn.errors import UsageError
from mucudnn.report import check_installed

_READ = 65536  # the most bytes of a file that its kind is recognised by


@dataclass(frozen=True)
class Kind:
    """A kind of files: its name, and how its first bytes are recognised."""

    name: str
    recognise: Callable[[bytes], bool]


def _is_list_of_convolutions(start: bytes) -> bool:
    lines = (line.strip() for line in start.decode(errors="replace").splitlines())
    first = next((line for line in lines if line and not line.startswith("#")), None)
    try:
        return first is None or bool(parse_descriptor(first))
    except ValueError:
        return False


PLAN = Kind("plan", lambda start: start.startswith(b"mucudnn plan "))
MEMORY_PLAN = Kind("memory plan", lambda start: start.startswith(b"mucudnn memory plan "))
PAGE = Kind("page of mucudnn report", lambda start: b"mucudnn</title>" in start)
PLOT = Kind("plot", lambda start: start.startswith((b"\x89PNG", b"<?xml", b"<svg")))
ROWS = Kind("export of a cache", lambda start: start.startswith(b'{"kind": "header"'))
CONVOLUTIONS = Kind("list of convolutions", _is_list_of_convolutions)
TIMELINE = Kind("timeline for Perfetto", lambda start: start.startswith(b'{"traceEvents"'))
DEVICE = Kind("description of a device", lambda start: b'"deviceName"' in start)


def add_force(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that replaces files of any kind."""
    parser.add_argument("--force", action="store_true", help="write over a file of another kind, too")


def add_output(
    parser: argparse.ArgumentParser, metavar: str, help_: str, flag: str = "--output", **more: Any
) -> None:
    """Declare the flag that names a file to write, and `--force`."""
    parser.add_argument(flag, type=options.checked(options.output), metavar=metavar, help=help_, **more)
    add_force(parser)


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a plot."""
    parser.add_argument(
        "--plot", type=options.checked(options.plot), metavar="FILE", help="draw it into a .svg or .png"
    )
    add_force(parser)


def check_plot(arguments: argparse.Namespace) -> None:
    """Raise MissingExtraError or UsageError if a plot is wanted that cannot be drawn or written."""
    if arguments.plot:
        check_installed()
        check(arguments.plot, PLOT, force=arguments.force)


def check(path: Path | None, kind: Kind, *, force: bool) -> None:
    """Raise UsageError if there is a file of another kind, and it may not be written over.

    The check comes before the measurements, as that of `options.output`. An empty file and a device such as
    /dev/stdout are of any kind.
    """
    if force or path is None or not path.is_file():
        return
    try:
        with path.open("rb") as file:
            start = file.read(_READ)
    except OSError as error:
        raise UsageError(
            f"'{path}' cannot be read, to see whether it is a {kind.name}: {error.strerror}"
        ) from None
    if start and not kind.recognise(start):
        raise UsageError(
            f"'{path}' exists but is not a {kind.name}: give another name, or --force to write over it"
        )

"""Files that commands write. An existing file is replaced only by a file of the same kind."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mucudnn._native import parse_descriptor
from mucudnn.cli import options
from mucudnn.errors import UsageError
from mucudnn.input import open_without_waiting
from mucudnn.report import check_installed

_READ = 65536  # the bytes at the beginning of a file that show its kind


@dataclass(frozen=True)
class Kind:
    """A kind of file, recognised by a file's first bytes."""

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
MEMORY_PLAN = Kind("memory plan", lambda start: b'"kind": "mucudnn memory plan"' in start)
PAGE = Kind("page of mucudnn report", lambda start: b"mucudnn</title>" in start)
PLOT = Kind("plot", lambda start: start.startswith((b"\x89PNG", b"<?xml", b"<svg")))
ROWS = Kind("export of a cache", lambda start: start.startswith(b'{"kind": "header"'))
CONVOLUTIONS = Kind("list of convolutions", _is_list_of_convolutions)
TIMELINE = Kind("timeline for Perfetto", lambda start: start.startswith(b'{"traceEvents"'))
DEVICE = Kind("description of a device", lambda start: b'"deviceName"' in start)


def add_force(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that replaces files of any kind."""
    parser.add_argument("--force", action="store_true", help="overwrite even a file of another kind")


def add_output(
    parser: argparse.ArgumentParser, metavar: str, help_: str, flag: str = "--output", **more: Any
) -> None:
    """Declare the flag that names a file to write, and `--force`."""
    parser.add_argument(flag, type=options.checked(options.parse_output), metavar=metavar, help=help_, **more)
    add_force(parser)


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Declare the flags of a plot."""
    parser.add_argument(
        "--plot", type=options.checked(options.parse_plot), metavar="FILE", help="draw it into a .svg or .png"
    )
    add_force(parser)


def check_plot(arguments: argparse.Namespace) -> None:
    """Raise MissingExtraError or UsageError if a plot is wanted that cannot be drawn or written."""
    if arguments.plot:
        check_installed()
        check(arguments.plot, PLOT, force=arguments.force)


def check(path: Path | None, kind: Kind, *, force: bool) -> None:
    """Raise UsageError if `path` is a file of another kind, unless `force` allows replacing it.

    Like `options.parse_output`, it runs before the measurements. An empty file and a device such as
    /dev/stdout pass as any kind.
    """
    if force or path is None or not path.is_file():
        return
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            start = file.read(_READ)
    except OSError as error:
        raise UsageError(
            f"'{path}' cannot be read, to see whether it is a {kind.name}: {error.strerror}"
        ) from None
    if start and not kind.recognise(start):
        raise UsageError(
            f"'{path}' exists but is not a {kind.name}: give another name, or --force to write over it"
        )

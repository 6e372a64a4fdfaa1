"""`mucudnn record`: write down the convolutions that a program makes."""

import argparse
import sys
from pathlib import Path

from mucudnn import settings
from mucudnn.cli import options, outputs
from mucudnn.cli.run import add_command, replace_process
from mucudnn.errors import UsageError

HELP = "write down the convolutions that a program makes"
DESCRIPTION = (
    "Replaces itself with COMMAND as `mucudnn run` does, but passes every call on. When the program ends, "
    "its convolutions are added to FILE with the number of calls. `mucudnn optimize FILE` reads that file."
)
EXAMPLES = ("mucudnn record --output net.txt -- python train.py",)
DEFAULT = "convolutions.txt"


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.usage = "mucudnn record [-h] [--output FILE] -- COMMAND..."
    outputs.add_output(parser, "FILE", f"add to this file (default: MUCUDNN_RECORD, else {DEFAULT})")
    add_command(parser)


def run(arguments: argparse.Namespace) -> None:
    """Replace this process with the command, and return only by an exception."""
    replace_process("record", arguments.command, lambda: _variables(arguments))


def _default() -> Path:
    """Return the file of MUCUDNN_RECORD, else DEFAULT. Raise UsageError if it cannot be written."""
    try:
        return options.parse_output(settings.RECORD.read() or DEFAULT)
    except UsageError as error:
        raise UsageError(f"{error}; --output or {settings.RECORD.variable} names another file") from None


def _variables(arguments: argparse.Namespace) -> dict[str, str]:
    file = (arguments.output or _default()).absolute()
    outputs.check(file, outputs.CONVOLUTIONS, force=arguments.force)
    print(f"Recording into {file}\nNext: mucudnn optimize {file} --passes all", file=sys.stderr, flush=True)
    return {settings.RECORD.variable: str(file), settings.MODE.variable: "record"}

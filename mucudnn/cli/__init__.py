"""The `mucudnn` command: one module for each subcommand, each with `prepare_parser` and `run`."""

import argparse
import codecs
import io
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from mucudnn import __version__
from mucudnn._native import EngineError
from mucudnn.cli.examples import format_examples
from mucudnn.errors import MucudnnError
from mucudnn.output.printable import printable
from mucudnn.output.streams import fill, reserve_stdout
from mucudnn.settings import SETTINGS

EXAMPLES = ("mucudnn optimize alexnet", "mucudnn run --workspace 64MiB -- python train.py")
_LONGEST = 2000  # the most characters of an error


class _HelpFormatter(argparse.HelpFormatter):
    """A formatter that wraps paragraphs but keeps the lines of a list, such as examples.

    It prints the commands' names in the column of the flags, without the line `COMMAND` above them.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=22)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)

    def _format_action(self, action: argparse.Action) -> str:
        if isinstance(action, argparse._SubParsersAction):
            return "".join(map(super()._format_action, action._get_subactions()))
        return super()._format_action(action)


class _Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, without the usage before it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _HelpFormatter, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {_short(message)} (see {self.prog} --help)\n")


COMMANDS = (
    "demo", "optimize", "benchmark", "memory", "run", "record", "doctor", "cache", "plan", "report", "sweep",
    "place", "project", "causes", "completion",
)  # fmt: skip


def _variables() -> str:
    """Return a paragraph for each environment variable, as wide as argparse's paragraphs."""
    column = max(len(setting.variable) for setting in SETTINGS) + 4
    return "\n".join(
        textwrap.fill(
            f"{setting.meaning} (default: {setting.default_text})",
            width=max(shutil.get_terminal_size().columns - 2, 40),
            initial_indent=f"  {setting.variable}".ljust(column),
            subsequent_indent=" " * column,
        )
        for setting in SETTINGS
    )


def make_parser(first: str = "") -> argparse.ArgumentParser:
    """Return a parser of all commands, or only of the command that the first argument names.

    The latter saves the time of importing the other commands' modules.
    """
    parser = _Parser(
        prog="mucudnn",
        description="Divides mini-batches of convolutions into micro-batches, so that fast algorithms fit "
        "into the workspace that you allow.",
        epilog=f"{format_examples(*EXAMPLES)}\n\nenvironment, which flags override:\n{_variables()}\n\n"
        "exit codes: 0 done, 1 failed, 2 usage, 3 nothing fits the limit, 4 no such engine or device,\n"
        "  5 a cache or plan of a newer version; `mucudnn run` has the program's own",
    )
    parser.add_argument(
        "--version", action="version", version=f"mucudnn {__version__}", help="print the version and exit"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in () if first == "--version" else [first] if first in COMMANDS else COMMANDS:
        module = import_module(f"mucudnn.cli.{name}")
        examples = format_examples(*module.EXAMPLES)
        command = commands.add_parser(name, help=module.HELP, description=module.DESCRIPTION, epilog=examples)
        module.prepare_parser(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Raises SystemExit for `--help`, `--version` and errors in the arguments.
    """
    words = sys.argv[1:] if argv is None else argv
    if sys.stderr is None:  # the descriptor was closed before the start
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="mucudnn.plain")
    try:
        arguments = make_parser(words[0] if words else "").parse_args(words)
        with reserve_stdout():
            arguments.run(arguments)
        return 0
    except MucudnnError as error:
        message, code = _short(str(error)), error.exit_code
    except EngineError as error:
        message, code = _short(str(error)), 1
    except MemoryError as error:
        message, code = f"out of memory: {error}", 1
    except KeyboardInterrupt:
        message, code = "interrupted", 130
    except BrokenPipeError:  # the reader, such as `head`, has ended
        return 1
    except OSError as error:
        message, code = f"{error.filename or 'the output cannot be written'}: {error.strerror}", 1
    print(fill(f"mucudnn: {message}", sys.stderr), file=sys.stderr)
    return code


def _short(message: str) -> str:
    """Return a message without control characters, cut in the middle if a value makes it very long."""
    text = printable(message)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"


def _replace_characters(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the locale's encoding lacks with similar ASCII characters, else with `?`."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode("ascii", "replace").decode(), error.end


_PLAIN = str.maketrans({"×": "x", "–": "-", "→": "->", "±": "+-"})
codecs.register_error("mucudnn.plain", _replace_characters)

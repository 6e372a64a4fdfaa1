"""The `mucudnn` command: one module for each subcommand, each with `prepare_parser` and `run`."""

import argparse
import codecs
import io
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from mucudnn import __version__
from mucudnn._native import EngineError
from mucudnn.cli.examples import format_examples
from mucudnn.errors import MucudnnError
from mucudnn.output.printable import printable
from mucudnn.output.streams import reserve_stdout
from mucudnn.settings import SETTINGS

EXAMPLES = ("mucudnn optimize alexnet", "mucudnn run --workspace 64MiB -- python train.py")
_LONGEST = 2000  # the most characters of an error


class _HelpFormatter(argparse.HelpFormatter):
    """A formatter that wraps paragraphs, and leaves the lines of a list, such as examples, as they are.

    Names of commands stand in one column with those of flags, without a line for all commands above them.
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
    "optimize", "benchmark", "memory", "run", "record", "doctor", "cache", "plan", "report", "sweep", "place",
    "project", "causes", "completion",
)  # fmt: skip


def _variables() -> str:
    """Return a paragraph for each environment variable, as wide as argparse's own."""
    first = max(len(setting.variable) for setting in SETTINGS) + 4
    return "\n".join(
        textwrap.fill(
            f"{setting.meaning} (default: {setting.default_text})",
            width=max(shutil.get_terminal_size().columns - 2, 40),
            initial_indent=f"  {setting.variable}".ljust(first),
            subsequent_indent=" " * first,
        )
        for setting in SETTINGS
    )


def make_parser(first: str = "") -> argparse.ArgumentParser:
    """Return a parser of all commands, or of the one that the first argument names.

    The modules of the other commands are then not imported, which saves time.
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
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="mucudnn.plain")
    try:
        arguments = make_parser(words[0] if words else "").parse_args(words)
        with reserve_stdout():
            arguments.run(arguments)
    except MucudnnError as error:
        print(f"mucudnn: {_short(str(error))}", file=sys.stderr)
        return error.exit_code
    except EngineError as error:
        print(f"mucudnn: {_short(str(error))}", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(f"mucudnn: out of memory: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mucudnn: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has ended
        return 1
    except OSError as error:
        print(
            f"mucudnn: {error.filename or 'the output cannot be written'}: {error.strerror}", file=sys.stderr
        )
        return 1
    return 0


def _short(message: str) -> str:
    """Return a message without control characters, cut in the middle if a value makes it very long."""
    text = printable(message)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}…{text[-_LONGEST // 2 :]}"


def _replace_characters(error: UnicodeError) -> tuple[str, int]:
    """Replace the characters that the locale's encoding lacks by similar ones of ASCII, else by `?`."""
    assert isinstance(error, UnicodeEncodeError)
    return error.object[error.start : error.end].translate(_PLAIN).encode(
        "ascii", "replace"
    ).decode(), error.end


_PLAIN = str.maketrans({"×": "x", "–": "-", "→": "->", "±": "+-"})
codecs.register_error("mucudnn.plain", _replace_characters)

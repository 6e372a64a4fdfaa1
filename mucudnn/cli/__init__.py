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
from mucudnn.errors import MucudnnError, UsageError, suggestion
from mucudnn.output.files import NewFile
from mucudnn.output.printable import printable
from mucudnn.output.streams import fill, reserve_stdout
from mucudnn.settings import LISTED

COMMANDS = ("demo", "optimize", "memory", "run", "plan", "cache", "doctor", "parallel", "completion")
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


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line, a UsageError of a value's type too, and shows examples."""

    def __init__(self, examples: Sequence[str] = (), more: str = "", **options: Any) -> None:
        head = f"example{'s' * (len(examples) > 1)}:"
        epilog = "\n".join([head, *(f"  {example}" for example in examples)]) + more
        # The command to type next repeats the flags, which must not be abbreviated for that.
        super().__init__(formatter_class=_HelpFormatter, allow_abbrev=False, epilog=epilog, **options)

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        parse = self._registry_get("type", action.type, action.type)
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            names = [str(choice) for choice in action.choices]
            hint = suggestion(str(value), names)
            raise argparse.ArgumentError(action, f"there is no '{value}'{hint} There are {', '.join(names)}")

    def error(self, message: str) -> NoReturn:
        """Exit with the code 2 after one line."""
        text = f"{self.prog}: {_short(message)} (see {self.prog} --help)"
        self.exit(2, f"{fill(text, sys.stderr)}\n")


def _variables() -> str:
    """Return a paragraph for each environment variable, as wide as argparse's paragraphs."""
    column = max(len(setting.variable) for setting in LISTED) + 4
    return "\n".join(
        textwrap.fill(
            f"{setting.meaning} (default: {setting.default_text})",
            width=max(shutil.get_terminal_size().columns - 2, 40),
            initial_indent=f"  {setting.variable}".ljust(column),
            subsequent_indent=" " * column,
        )
        for setting in LISTED
    )


def make_parser(first: str = "") -> argparse.ArgumentParser:
    """Return a parser of all commands, or only of the command that the first argument names.

    The latter saves the time of importing the other commands' modules.
    """
    parser = Parser(
        prog="mucudnn",
        description="Divides mini-batches of convolutions into micro-batches, so that fast algorithms fit "
        "into the workspace that you allow.",
        examples=("mucudnn optimize alexnet", "mucudnn run --workspace 64MiB -- python train.py"),
        more=f"\n\nenvironment, which flags override:\n{_variables()}\n\n"
        "exit codes: 0 done, 1 failed, 2 usage, 3 nothing fits the limit, 4 no such engine or device,\n"
        "  5 a cache or plan of a newer version; `mucudnn run` has the program's own",
    )
    parser.add_argument(
        "--version", action="version", version=f"mucudnn {__version__}", help="print the version and exit"
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    names = () if first == "--version" else [first] if first in COMMANDS else COMMANDS
    add_commands(commands, {name: f"mucudnn.cli.{name}" for name in names})
    return parser


def add_commands(commands: Any, modules: dict[str, str]) -> None:
    """Declare the commands that modules implement. One without HELP is not listed."""
    for name, path in modules.items():
        module = import_module(path)
        listed = {"help": module.HELP} if hasattr(module, "HELP") else {}
        command = commands.add_parser(
            name, description=module.DESCRIPTION, examples=module.EXAMPLES, **listed
        )
        command.set_defaults(run=getattr(module, "run", None))
        module.prepare_parser(command)


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
        arguments.words = words
        with reserve_stdout():
            answer = arguments.run(arguments)
            if answer is not None:
                from mucudnn.output.answers import print_answer

                print_answer(answer, as_json=arguments.json)
            for file in vars(arguments).values():
                if isinstance(file, NewFile) and file.is_file():
                    print(fill(f"Wrote {printable(str(file))}", sys.stderr), file=sys.stderr)
        return 0
    except (MucudnnError, EngineError) as error:
        message, code = _short(str(error)), getattr(error, "exit_code", 1)
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

"""The answers of commands: tables and sentences for people, and JSON for programs, on standard output."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mucudnn.errors import MucudnnError
from mucudnn.forks import no_fork
from mucudnn.output.printable import printable
from mucudnn.output.streams import fill_lines, results
from mucudnn.output.text import fine_milliseconds, milliseconds, ratio
from mucudnn.sizes import format_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Lines: TypeAlias = "Iterator[Table | str]"

_SCHEMA = 1  # the version of all JSON output
WIDTH = 100  # columns of the widest table, and of output that goes to no terminal
# How a column of figures writes its values, by the text before the `>` of its heading.
_FORMATS: dict[str, Callable[[Any], str]] = {
    "": str, "ms": milliseconds, "fine": fine_milliseconds, "B": format_size, "×": ratio,
}  # fmt: skip


class Answer:
    """The result of a command. Each command has a dataclass of its own."""

    failure = ""  # why the exit code is 1 although there is an answer

    def content(self) -> dict[str, Any]:
        """Return the object that `--json` prints, which has all fields unless a subclass says otherwise."""
        return vars(self)

    def lines(self) -> Lines:
        """Yield the tables and sentences for people."""
        raise NotImplementedError


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """Print an answer as JSON or as tables and sentences. Raises MucudnnError if it is a failure."""
    if as_json:
        content = {"schema": _SCHEMA, **answer.content()}
        print(json.dumps(content, default=_encode, indent=1), file=results())
    else:
        show(*answer.lines())
    if answer.failure:
        raise MucudnnError(answer.failure)


def _encode(value: Any) -> object:
    return str(value) if isinstance(value, Path) else asdict(value)


# rich takes a tenth of a second to import, which JSON output need not wait for.
def table(*heads: str, rows: Iterable[Mapping[str, Any] | Sequence[Any]], gap: int = 2) -> "Table":
    """Return a table of plain text with `gap` spaces between the columns; an empty row is a line.

    A column whose heading begins with `>` holds figures, and is aligned to the right. `ms>` and `fine>` say
    that it holds milliseconds, `B>` bytes and `×>` ratios. A missing value is a dash. A row that is a mapping
    has a value for each heading, with `_` for spaces and hyphens.
    """
    with no_fork:
        from rich import box
        from rich.table import Table
        from rich.text import Text

    columns = [head.rpartition(">") for head in heads]
    built = Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False)
    for _, figures, name in columns:
        if figures:
            built.add_column(name, justify="right", no_wrap=True)
        else:
            built.add_column(Text(printable(name)), overflow="fold")
    for row in rows:
        if not row:
            built.add_section()
            continue
        values = [row[re.sub("[ -]", "_", name)] for *_, name in columns] if isinstance(row, Mapping) else row
        cells = (_format(value, kind) for value, (kind, *_) in zip(values, columns, strict=True))
        built.add_row(*(Text(printable(cell)) for cell in cells))
    return built


def _format(value: Any, kind: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return "–" if value is None else value if isinstance(value, str) else _FORMATS[kind](value)


def stdout() -> "Console":
    """Return the console for results, WIDTH columns wide if stdout is not a terminal."""
    with no_fork:
        from rich.console import Console

    console = Console(highlight=False, file=results())
    return console if console.is_terminal else Console(highlight=False, file=results(), width=WIDTH)


def show(*items: "Table | str") -> None:
    """Print tables and sentences on stdout.

    On a terminal the lines of a sentence end between words. A text of several lines stays as it is, and so
    does the next command, which a user copies.
    """
    console = stdout()
    for item in items:
        if not isinstance(item, str):
            console.print(item)
            continue
        text = printable(item)
        if console.is_terminal and "\n" not in text and not text.startswith("Next: "):
            sentence = text.lstrip(" ")
            text = fill_lines(sentence, console.width, " " * (len(text) - len(sentence)))
        console.print(text, markup=False, soft_wrap=True)

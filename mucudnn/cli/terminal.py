"""The output to the user: results on stdout, messages and progress on stderr."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mucudnn.costs.cache import Cache
from mucudnn.errors import InterruptedByUserError, MucudnnError
from mucudnn.listener import Listener, ProgressBar
from mucudnn.output.printable import printable
from mucudnn.output.streams import fill, fill_lines, results
from mucudnn.output.text import milliseconds, ratio
from mucudnn.sizes import format_size

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Lines: TypeAlias = "Iterator[Table | str]"

_SCHEMA = 1  # the version of all JSON output
WIDTH = 100  # columns of the widest table, and of output that goes to no terminal
# How a column of figures writes its values, by the text before the `>` of its heading.
_FORMATS: dict[str, Callable[[Any], str]] = {"": str, "ms": milliseconds, "B": format_size, "×": ratio}


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


def _encode(value: object) -> object:
    return str(value) if isinstance(value, Path) else vars(value)


class Terminal(ProgressBar):
    """A listener that prints messages on stderr, and shows progress there if that is a terminal."""

    def message(self, text: str) -> None:
        """Print a text on stderr: one line, unless a terminal is narrower."""
        # One write, because after an interrupt without the newline another process would continue this line.
        print(f"{fill(printable(text), sys.stderr)}\n", end="", file=sys.stderr, flush=True)


@contextmanager
def opened_cache(terminal: Listener, *, needed: bool) -> Iterator[Cache]:
    """Open the user's cache with `Cache.of_user`.

    An interrupt inside becomes an InterruptedByUserError that says where the measurements are kept.
    Raises MucudnnError.
    """
    with Cache.of_user(terminal, needed=needed) as cache:
        try:
            yield cache
        except KeyboardInterrupt:
            kept = f"what was measured is kept in {cache.path}" if cache.kept else "nothing was kept"
            raise InterruptedByUserError(f"interrupted: {kept}") from None


# rich takes a tenth of a second to import, which JSON output need not wait for.
def table(*heads: str, rows: Iterable[Sequence[Any]], gap: int = 2) -> "Table":
    """Return a table of plain text with `gap` spaces between the columns; an empty row is a line.

    A column whose heading begins with `>` holds figures, and is aligned to the right. `ms>`, `B>` and `×>`
    say that it holds milliseconds, bytes or ratios. A missing value is a dash.
    """
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
        cells = (
            "–" if cell is None else cell if isinstance(cell, str) else _FORMATS[kind](cell)
            for cell, (kind, *_) in zip(row, columns, strict=False)
        )
        built.add_row(*(Text(printable(cell)) for cell in cells))
    return built


def stdout() -> "Console":
    """Return the console for results, WIDTH columns wide if stdout is not a terminal."""
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

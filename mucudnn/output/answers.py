"""The answers of commands: tables and sentences for people, and JSON for programs, on standard output."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from mucudnn.errors import MucudnnError
from mucudnn.output.printable import printable
from mucudnn.output.streams import columns, fill, results
from mucudnn.output.table import text_table
from mucudnn.output.text import fine_milliseconds, milliseconds, ratio
from mucudnn.sizes import format_size

Lines: TypeAlias = Iterator[str]

_SCHEMA = 1  # the version of all JSON output
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


def table(*heads: str, rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> str:
    """Return a table of plain text; an empty row is a line.

    A row takes one line if stdout is not a terminal, because programs read lines. A column whose heading
    begins with `>` holds figures, and is aligned to the right. `ms>` and `fine>` say that it holds
    milliseconds, `B>` bytes and `×>` ratios. A missing value is a dash. A row that is a mapping has a value
    for each heading, with `_` for spaces and hyphens.
    """
    kinds, marks, names = zip(*(head.rpartition(">") for head in heads), strict=True)
    between = " + " if columns(results()) is None else "\n"
    cells = (
        [_format(value, kind).replace("\n", between) for value, kind in zip(values, kinds, strict=True)]
        for values in (_values(row, names) for row in rows)
    )
    return text_table(names, cells, marks)


def _values(row: Mapping[str, Any] | Sequence[Any], names: Sequence[str]) -> Sequence[Any]:
    if isinstance(row, Mapping):
        return [row[re.sub("[ -]", "_", name)] for name in names]
    return row or [""] * len(names)


def _format(value: Any, kind: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return "–" if value is None else value if isinstance(value, str) else _FORMATS[kind](value)


def show(*texts: str) -> None:
    """Print tables and sentences on stdout.

    On a terminal the lines of a sentence end between words. A text of several lines stays as it is, and so
    does the next command, which a user copies.
    """
    for text in map(printable, texts):
        is_whole = "\n" in text or text.startswith("Next: ")
        print(text if is_whole else fill(text, results()), file=results())

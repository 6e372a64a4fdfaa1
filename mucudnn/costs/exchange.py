"""Rows of a cache as JSON lines, which other hosts and people can read.

The first line is `{"kind": "header", "schema": 2}`. Each other line is a row of one of the cache's kinds. A
header may occur again, so files can be concatenated.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from mucudnn.codec import parse_json
from mucudnn.costs.schema import FORMAT, KINDS, Row
from mucudnn.errors import MucudnnError, raised_here
from mucudnn.input import refuse_newer

_HEADER = json.dumps({"kind": "header", "schema": FORMAT})


def format_rows(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a file, with their ends."""
    yield _HEADER + "\n"
    for kind, row in rows:
        yield json.dumps({"kind": kind.name, **row}, ensure_ascii=False, allow_nan=False) + "\n"


def parse_rows(lines: Iterable[str], source: str) -> Iterator[Row]:
    """Yield the rows of a file's lines. Raise MucudnnError naming `source` and the line; NewerFileError."""
    has_header = False
    for number, line in enumerate(lines, 1):
        try:
            values = parse_json(line)
            if not isinstance(values, dict):
                raise ValueError("it is not a JSON object")
            name = values.pop("kind", None)
            if name == "header":
                _check_schema(values.get("schema"), source)
                has_header = True
            elif not has_header:
                raise ValueError(f"it comes before a header, {_HEADER}")
            else:
                kind = next((kind for kind in KINDS if kind.name == name), None)
                if kind is None:
                    raise ValueError(f"the kind is {name!r}, not one of {', '.join(k.name for k in KINDS)}")
                yield kind, kind.checked(values)
        except raised_here(ValueError, OverflowError) as error:
            raise MucudnnError(f"{source}, line {number}: {error}") from None
    if not has_header:
        raise MucudnnError(f"{source} is empty, so it is not what mucudnn cache export writes")


def _check_schema(schema: Any, source: str) -> None:
    if type(schema) is not int or schema < 1:
        raise ValueError(f"the schema is {schema!r}, not a number from 1")
    refuse_newer(f"export {source}", schema, FORMAT, "export it again")
    if schema < FORMAT:
        raise ValueError(f"the schema is {schema}, this mucudnn reads {FORMAT}: measure again")

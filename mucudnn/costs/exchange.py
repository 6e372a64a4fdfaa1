"""Rows of a cache as JSON lines, which other hosts and people can read.

The first line is `{"kind": "header", "schema": 4}`. Each other line is a row of one of the cache's kinds. A
header may occur again, so files can be concatenated.
"""

import json
from collections.abc import Iterable, Iterator

from mucudnn.codec import check_version, parse_json
from mucudnn.costs.schema import FORMAT, KINDS, Row
from mucudnn.errors import MucudnnError, raised_here

_KINDS = {kind.name: kind for kind in KINDS}
_HEADER = json.dumps({"kind": "header", "schema": FORMAT})


def format_rows(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a file, with their ends."""
    yield _HEADER + "\n"
    for kind, row in rows:
        columns = {name: row[name] for name in kind.columns}
        yield json.dumps({"kind": kind.name, **columns}, ensure_ascii=False, allow_nan=False) + "\n"


def parse_rows(lines: Iterable[str], source: str) -> Iterator[Row]:
    """Yield the rows of a file's lines. Raise MucudnnError naming `source` and the line; NewerFileError."""
    has_header = False
    for number, line in enumerate(lines, 1):
        try:
            values = parse_json(line)
            if not isinstance(values, dict):
                raise ValueError("it is not a JSON object")
            name = str(values.pop("kind", None))
            if name == "header":
                check_version(f"export {source}", values.get("schema"), FORMAT)
                has_header = True
            elif not has_header:
                raise ValueError(f"it comes before a header, {_HEADER}")
            else:
                if name not in _KINDS:
                    raise ValueError(f"the kind is {name!r}, not one of {', '.join(_KINDS)}")
                yield _KINDS[name], _KINDS[name].checked(values)
        except raised_here(ValueError, OverflowError) as error:
            raise MucudnnError(f"{source}, line {number}: {error}") from None
    if not has_header:
        raise MucudnnError(f"{source} is empty, so it is not what mucudnn cache export writes")

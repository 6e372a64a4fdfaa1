"""Rows of a cache as JSON lines, which other hosts, later versions and people can read.

The first line is `{"kind": "header", "schema": 1}`. Each other line is a row of one of the cache's tables,
without the columns that its problem implies. A header may occur again, so files can be concatenated.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NoReturn

from mucudnn._native import Problem, parse_candidates, parse_descriptor
from mucudnn.costs.schema import ENUMERATION, TABLES, TRIAL, Column, Row, Table
from mucudnn.errors import MucudnnError, raised_here
from mucudnn.input import refuse_newer
from mucudnn.problems.kernels import PASSES

SCHEMA = 1


def format_rows(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of a file, with their ends."""
    yield json.dumps({"kind": "header", "schema": SCHEMA}) + "\n"
    for table, values in rows:
        columns = {name: values[name] for name in table.columns}
        yield json.dumps({"kind": table.kind, **columns}, ensure_ascii=False, allow_nan=False) + "\n"


def parse_rows(lines: Iterable[str], source: str) -> Iterator[Row]:
    """Yield the rows of a file's lines. Raise MucudnnError naming `source` and the line; NewerFileError."""
    known = False
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line, parse_constant=_refuse_constant)
            if not isinstance(values, dict):
                raise ValueError("it is not a JSON object")
            name = values.pop("kind", None)
            if name == "header":
                _check_schema(values.get("schema"), source)
                known = True
            elif not known:
                raise ValueError(f'it comes before a header, {{"kind": "header", "schema": {SCHEMA}}}')
            else:
                yield _row(name, values)
        except json.JSONDecodeError as error:
            raise MucudnnError(f"{source}, line {number}: it is not JSON: {error.msg}") from None
        except raised_here(ValueError, OverflowError, RecursionError) as error:
            raise MucudnnError(f"{source}, line {number}: {error}") from None
    if not known:
        raise MucudnnError(f"{source} is empty, so it is not what mucudnn cache export writes")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number that a cache keeps")


def _check_schema(schema: Any, source: str) -> None:
    if type(schema) is not int or schema < 1:
        raise ValueError(f"the schema is {schema!r}, not a number from 1")
    refuse_newer(f"export {source}", schema, SCHEMA, "export it again")


def _row(kind: Any, values: dict[str, Any]) -> Row:
    table = next((table for table in TABLES if table.kind == kind), None)
    if table is None:
        raise ValueError(f"the kind is {kind!r}, not one of {', '.join(table.kind for table in TABLES)}")
    columns = table.columns
    if values.keys() != columns.keys():
        missing, extra = columns.keys() - values.keys(), values.keys() - columns.keys()
        raise ValueError(f"there is no {min(missing)}" if missing else f"{min(extra)!r} is not a column")
    return table, checked_row(table, values)


def checked_row(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its texts in their usual form. Raise ValueError if it is not a row of the table."""
    columns = table.columns
    row = {name: checked_value(columns[name], value) for name, value in values.items()}
    if row["pass"] not in PASSES:
        raise ValueError(f"pass is {row['pass']!r}, not one of {', '.join(PASSES)}")
    if table is ENUMERATION:
        parse_candidates(row["candidates"])
    if table is TRIAL and row["is_invariant"] not in (0, 1):
        raise ValueError(f"is_invariant is {row['is_invariant']}, not 0 or 1")
    row["problem"] = _problem_text(table, row["problem"])
    row["measured_at"] = _time(row["measured_at"])
    return row


def checked_cells(table: Table, *cells: Any) -> dict[str, Any]:
    """Return the row that the cells of `table.selection` make. Raise ValueError as `checked_row` does."""
    return checked_row(table, dict(zip(table.columns, cells, strict=True)))


@lru_cache(maxsize=4096)
def _problem_text(table: Table, problem: str) -> str:
    parsed: Problem = parse_descriptor(problem)[0]
    return table.problem_text(parsed)


def checked_value(column: Column, raw: Any) -> Any:
    """Return a value in the type of its column. Raise ValueError if the column cannot hold it."""
    if raw is None and column.nullable:
        return None
    value = float(raw) if column.type is float and type(raw) is int else raw
    if type(value) is not column.type:
        raise ValueError(f"{column.name} is {raw!r}, not {column.type.__name__}")
    if isinstance(value, str):
        value.encode()  # raises a ValueError for half a surrogate pair
    # Decisions add times, and a sum must stay finite: refuse a time that no clock can show.
    if isinstance(value, int | float) and not column.least <= value < 2**63:
        raise ValueError(f"{column.name} is {value}, must be at least {column.least} and below 2^63")
    return value


def _time(text: str) -> str:
    """Return the time in UTC and to the second, so that times compare as text."""
    try:
        time = datetime.fromisoformat(text)
    except raised_here(ValueError):
        raise ValueError(f"measured_at is {text!r}, not a time in ISO 8601") from None
    if time.tzinfo is None:
        raise ValueError(f"measured_at is {text!r}, without a time zone")
    try:
        return time.astimezone(UTC).isoformat(timespec="seconds")
    except OverflowError:
        raise ValueError(f"measured_at is {text!r}, a time that UTC cannot give") from None

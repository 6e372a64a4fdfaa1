"""Rows of a cache outside of it: JSON lines that other hosts, later versions and people can read.

The first line is `{"kind": "header", "schema": 2}`, each other one a row of one of the kinds below with the
columns of the cache's table, those left out that its problem tells. A header may occur again, so that files
can be put after one another. Schema 1 had no enumerations.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

from mucudnn._native import Problem, parse_candidates, parse_descriptor
from mucudnn.costs.records import CANNOT_ACCUMULATE
from mucudnn.errors import MucudnnError, NewerFileError
from mucudnn.problems.descriptor import geometry, problem_key
from mucudnn.problems.kernels import PASSES

SCHEMA = 2


@dataclass(frozen=True, eq=False)
class Kind:
    """One table: its columns with their types, those that may be null, and those that make a row unique."""

    name: str
    table: str
    columns: Mapping[str, type]
    nullable: frozenset[str]
    key: tuple[str, ...]


_MACHINE = {"engine": str, "device": str, "library": str, "threads": int}
_KEPT = {"measured_at": str, "version": str}
MEASUREMENT = Kind(
    "measurement",
    "measurements",
    {
        **_MACHINE, "problem": str, "pass": str, "micro_batch": int, "algorithm": str, "status": str,
        "workspace": int, "notes": str, "median_ms": float, "spread_ms": float, "accumulator": int, **_KEPT,
    },
    frozenset({"median_ms", "spread_ms"}),
    ("device", "library", "threads", "problem", "pass", "micro_batch", "algorithm"),
)  # fmt: skip
COMPARISON = Kind(
    "comparison",
    "comparisons",
    {
        **_MACHINE, "problem": str, "pass": str, "undivided": str, "divided": str, "undivided_ms": float,
        "divided_ms": float, "undivided_spread_ms": float, "divided_spread_ms": float, "error": float,
        "same_algorithms_error": float, "undivided_error": float, **_KEPT,
    },
    frozenset({"undivided_ms", "undivided_spread_ms", "error", "same_algorithms_error", "undivided_error"}),
    ("device", "library", "threads", "problem", "pass", "undivided", "divided"),
)  # fmt: skip
# What can run at a micro-batch size, all of it. Other algorithms are not there, or cannot.
ENUMERATION = Kind(
    "enumeration",
    "enumerations",
    {**_MACHINE, "problem": str, "pass": str, "micro_batch": int, "candidates": str, **_KEPT},
    frozenset(),
    ("device", "library", "threads", "problem", "pass", "micro_batch"),
)
KINDS = (MEASUREMENT, COMPARISON, ENUMERATION)

_LEAST = {"threads": 1, "micro_batch": 1, "accumulator": CANNOT_ACCUMULATE}  # of the others 0

Row: TypeAlias = tuple[Kind, dict[str, Any]]


def format_rows(rows: Iterable[Row]) -> Iterator[str]:
    """The lines of a file, with their ends."""
    yield json.dumps({"kind": "header", "schema": SCHEMA}) + "\n"
    for kind, values in rows:
        columns = {name: values[name] for name in kind.columns}
        yield json.dumps({"kind": kind.name, **columns}, ensure_ascii=False, allow_nan=False) + "\n"


def parse_rows(lines: Iterable[str], source: str) -> Iterator[Row]:
    """The rows of a file's lines. Raises MucudnnError naming `source` and the line; NewerFileError."""
    known = False
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line, parse_constant=_no_constant)
            if not isinstance(values, dict):
                raise ValueError("it is no JSON object")
            name = values.pop("kind", None)
            if name == "header":
                known = _is_known(values.get("schema"), source)
            elif not known:
                raise ValueError(f'it comes before a header, {{"kind": "header", "schema": {SCHEMA}}}')
            else:
                yield _row(name, values)
        except json.JSONDecodeError as error:
            raise MucudnnError(f"{source}, line {number}: it is no JSON: {error.msg}") from None
        except (ValueError, OverflowError, RecursionError) as error:
            raise MucudnnError(f"{source}, line {number}: {error}") from None


@lru_cache(maxsize=4096)
def derived(kind: Kind, problem: str) -> dict[str, Any]:
    """The table's columns that the problem tells, and the problem in full. Raises ValueError."""
    parsed: Problem = parse_descriptor(problem)[0]
    if kind is COMPARISON:
        return {"problem": str(parsed)}
    if kind is ENUMERATION:
        return {"problem": problem_key(parsed)}
    said = {"data_type": parsed.data_type, "layout": parsed.layout, "math": parsed.math}
    return {"problem": problem_key(parsed), **said, **geometry(parsed)}


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number that a cache keeps")


def _is_known(schema: Any, source: str) -> bool:
    if type(schema) is not int or schema < 1:
        raise ValueError(f"the schema is {schema!r}, not a number from 1")
    if schema > SCHEMA:
        raise NewerFileError(
            f"{source} is of schema {schema}, this mucudnn reads up to schema {SCHEMA}: upgrade mucudnn"
        )
    return True


def _row(name: Any, values: dict[str, Any]) -> Row:
    kind = next((kind for kind in KINDS if kind.name == name), None)
    if kind is None:
        raise ValueError(f"the kind is {name!r}, not one of {', '.join(kind.name for kind in KINDS)}")
    if values.keys() != kind.columns.keys():
        missing, extra = kind.columns.keys() - values.keys(), values.keys() - kind.columns.keys()
        raise ValueError(f"there is no {min(missing)}" if missing else f"{min(extra)} is no column")
    row = {column: _value(kind, column, value) for column, value in values.items()}
    if row["pass"] not in PASSES:
        raise ValueError(f"pass is {row['pass']!r}, not one of {', '.join(PASSES)}")
    if kind is ENUMERATION:
        parse_candidates(row["candidates"])
    row["problem"] = derived(kind, row["problem"])["problem"]
    row["measured_at"] = _time(row["measured_at"])
    return kind, row


def _value(kind: Kind, column: str, given: Any) -> Any:
    if given is None and column in kind.nullable:
        return None
    wanted = kind.columns[column]
    value = float(given) if wanted is float and type(given) is int else given
    if type(value) is not wanted:
        raise ValueError(f"{column} is {given!r}, not {wanted.__name__}")
    if isinstance(value, str):
        value.encode()  # a ValueError where it is no Unicode
    if isinstance(value, int | float):
        least = _LEAST.get(column, 0)
        if not least <= value < (2**63 if wanted is int else math.inf):
            raise ValueError(f"{column} is {value}, must be at least {least} and finite")
    return value


def _time(text: str) -> str:
    """In UTC and to the second, so that times compare as text."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"measured_at is {text!r}, not a time in ISO 8601") from None
    if time.tzinfo is None:
        raise ValueError(f"measured_at is {text!r}, without a time zone")
    return time.astimezone(UTC).isoformat(timespec="seconds")

"""The tables of a cache, in the one place that names their columns.

A table's own columns are mostly the fields of its record in `records`. The machine and the kernel precede
them, and the row's origin follows. Table definitions, lines of an exported file and keys are made from these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache, cached_property, lru_cache
from typing import Any, TypeAlias, TypeVar, get_args, get_type_hints

import mucudnn
from mucudnn._native import Problem, parse_descriptor
from mucudnn.costs.records import (
    CANNOT_ACCUMULATE,
    UNLIKELY,
    Comparison,
    GroupsComparison,
    Machine,
    Measurement,
    StepTime,
)
from mucudnn.problems.descriptor import GEOMETRY, geometry, problem_key
from mucudnn.problems.kernels import Kernel

Record = TypeVar("Record")

_SQL = {str: "TEXT", int: "INTEGER", float: "REAL"}
_LEAST = {"threads": 1, "micro_batch": 1, "accumulator": CANNOT_ACCUMULATE}  # 0 for all other numbers


@dataclass(frozen=True)
class Column:
    """A column with the Python type of its values."""

    name: str
    type: type
    nullable: bool = False

    @property
    def definition(self) -> str:
        """The column as CREATE TABLE has it."""
        return f'"{self.name}" {_SQL[self.type]}{"" if self.nullable else " NOT NULL"}'

    @property
    def least(self) -> int:
        """The smallest number that the column may hold."""
        return _LEAST.get(self.name, 0)


@cache  # reading the type hints takes 0.5 ms
def columns_of(record: type) -> tuple[Column, ...]:
    """Return a column for each field of a record. A field that may be None may be null."""
    hints = get_type_hints(record)
    columns = []
    for field in fields(record):
        types = get_args(hints[field.name]) or (hints[field.name],)
        [type_] = [kind for kind in types if kind is not type(None)]
        columns.append(Column(field.name, type_, nullable=len(types) > 1))
    return tuple(columns)


MACHINE = columns_of(Machine)
_PROBLEM, _PASS = Column("problem", str), Column("pass", str)
_ORIGIN = (Column("measured_at", str), Column("version", str))
# Columns for people who query the file with sqlite. Exported rows lack them: the problem implies them.
_IMPLIED = (
    *(Column(name, str) for name in ("data_type", "layout", "math")),
    *(Column(name, int, nullable=True) for name in GEOMETRY),
)
KERNEL_KEY = ("device", "library", "threads", "problem", "pass")


@dataclass(frozen=True, eq=False)
class Table:
    """A table of the cache. `kind` names its rows in exported files; `own` are its own columns."""

    kind: str
    name: str
    own: tuple[Column, ...]
    own_key: tuple[str, ...]
    implied: tuple[Column, ...] = ()
    keeps_mini_batch: bool = False

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns of an exported row, by name."""
        return {column.name: column for column in (*MACHINE, _PROBLEM, _PASS, *self.own, *_ORIGIN)}

    @cached_property
    def selection(self) -> str:
        """The columns of an exported row, as SELECT takes them."""
        return ", ".join(f'"{name}"' for name in self.columns)

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return (*KERNEL_KEY, *self.own_key)

    @property
    def definition(self) -> str:
        """The table as CREATE TABLE has it."""
        columns = (*MACHINE, _PROBLEM, *self.implied, _PASS, *self.own, *_ORIGIN)
        return f"{', '.join(column.definition for column in columns)}, UNIQUE ({', '.join(self.key)})"

    def problem_text(self, problem: Problem) -> str:
        """Return the text that stands for a problem in this table."""
        return str(problem) if self.keeps_mini_batch else problem_key(problem)

    def upsert(self, row: Mapping[str, Any], condition: str = "") -> tuple[str, tuple[Any, ...]]:
        """Return the statement that adds an exported row, and its values.

        A row with the same key is replaced if the `condition` holds. Raise ValueError if the row's problem
        cannot be read.
        """
        values = {**row, **_implied_by(row["problem"], self)}
        return _insertion(self, tuple(values), condition), tuple(values.values())

    def row(
        self, machine: Machine, kernel: Kernel, own: Mapping[str, Any], *, measured_at: str | None = None
    ) -> dict[str, Any]:
        """Return an exported row with these values of the table's own columns, measured now by default."""
        return {
            **vars(machine),
            "problem": self.problem_text(kernel.problem),
            "pass": kernel.pass_,
            **{column.name: own[column.name] for column in self.own},
            "measured_at": measured_at or datetime.now(UTC).isoformat(timespec="seconds"),
            "version": mucudnn.__version__,
        }


@cache
def _insertion(table: Table, columns: tuple[str, ...], condition: str) -> str:
    names = [f'"{name}"' for name in columns]
    return (
        f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))}) "
        f"ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET "
        f"{', '.join(f'{name} = excluded.{name}' for name in names)} {condition}"
    )


@lru_cache(maxsize=4096)
def _implied_by(problem: str, table: Table) -> dict[str, Any]:
    """Return the problem's text in full and the columns that it implies. Raise ValueError."""
    parsed: Problem = parse_descriptor(problem)[0]
    values = geometry(parsed) | {name: getattr(parsed, name) for name in ("data_type", "layout", "math")}
    implied = {column.name: values.get(column.name) for column in table.implied}
    return {"problem": table.problem_text(parsed), **implied}


def record_of(record: type[Record], row: Mapping[str, Any]) -> Record:
    """Return the record that a row holds."""
    return record(**{column.name: row[column.name] for column in columns_of(record)})  # type: ignore[arg-type]  # a type is hashable


MEASUREMENT = Table(
    "measurement",
    "measurements",
    columns_of(Measurement),
    ("micro_batch", "algorithm"),
    implied=_IMPLIED,
)
# The conditions of an upsert of measurements: a disturbed row does not replace an undisturbed one, unless
# that was never measured, and an undisturbed row replaces a disturbed one.
UNDISTURBED = (
    f"(excluded.busy_tries = 0 OR measurements.busy_tries > 0 OR measurements.status = '{UNLIKELY}')"
)
MORE_UNDISTURBED = "(excluded.busy_tries = 0 AND measurements.busy_tries > 0)"
NOT_UNLIKELY = f"(excluded.status <> '{UNLIKELY}' OR measurements.status = '{UNLIKELY}')"
COMPARISON = Table(
    "comparison",
    "comparisons",
    (Column("undivided", str), Column("divided", str), *columns_of(Comparison)),
    ("undivided", "divided"),
    keeps_mini_batch=True,
)
GROUP_COMPARISON = Table(
    "group_comparison",
    "group_comparisons",
    (Column("division", str), Column("channel_groups", str), *columns_of(GroupsComparison)),
    ("division", "channel_groups"),
    keeps_mini_batch=True,
)
# A row lists all algorithms that an engine can run at a micro-batch size, measured or not.
ENUMERATION = Table(
    "enumeration", "enumerations", (Column("micro_batch", int), Column("candidates", str)), ("micro_batch",)
)
# A step is filed under the forward pass of its first convolution.
STEP_TIME = Table("step_time", "step_times", columns_of(StepTime), ("step", "way"), keeps_mini_batch=True)
# `is_invariant` is 1 if an algorithm gives each sample of a micro-batch the bits that it gets alone, else 0.
# A GPU's driver compiles some kernels, so another driver's outcome does not count.
TRIAL = Table(
    "trial",
    "trials",
    (
        Column("micro_batch", int), Column("algorithm", str), Column("driver", str),
        Column("is_invariant", int),
    ),
    ("micro_batch", "algorithm", "driver"),
)  # fmt: skip
TABLES = (MEASUREMENT, COMPARISON, GROUP_COMPARISON, ENUMERATION, STEP_TIME, TRIAL)

Row: TypeAlias = tuple[Table, dict[str, Any]]

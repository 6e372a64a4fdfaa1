"""The kinds of rows in a cache, in the one place that names their columns and says which rows are valid.

A kind's own columns are mostly the fields of its record in `records`. The machine and the kernel precede
them, and the row's origin follows. The cache's file, exported lines and keys are made from these columns.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property, lru_cache
from typing import Any, TypeAlias, TypeVar, get_args, get_type_hints

import mucudnn
from mucudnn._native import Problem, parse_candidates, parse_descriptor
from mucudnn.costs.records import (
    CANNOT_ACCUMULATE,
    RACED,
    UNLIKELY,
    Comparison,
    GroupsComparison,
    Machine,
    Measurement,
    StepTime,
    StepUses,
)
from mucudnn.errors import raised_here
from mucudnn.problems.descriptor import problem_key
from mucudnn.problems.kernels import PASSES, Kernel

Record = TypeVar("Record")

FORMAT = 2  # the version of the file and of exported rows, which changes with any column
_LEAST = {"threads": 1, "micro_batch": 1, "accumulator": CANNOT_ACCUMULATE}  # 0 for all other numbers


@dataclass(frozen=True)
class Column:
    """A column with the Python type of its values."""

    name: str
    type: type
    nullable: bool = False

    def checked(self, raw: Any) -> Any:
        """Return a value in the type of the column. Raise ValueError if the column cannot hold it."""
        if raw is None and self.nullable:
            return None
        value = float(raw) if self.type is float and type(raw) is int else raw
        if type(value) is not self.type:
            raise ValueError(f"{self.name} is {raw!r}, not {self.type.__name__}")
        if isinstance(value, str):
            value.encode()  # raises a ValueError for half a surrogate pair
        # Decisions add times, and a sum must stay finite: refuse a time that no clock can show.
        least = _LEAST.get(self.name, 0)
        if isinstance(value, int | float) and not least <= value < 2**63:
            raise ValueError(f"{self.name} is {value}, must be at least {least} and below 2^63")
        return value


@cache  # reading the type hints takes 0.5 ms
def columns_of(record: type) -> tuple[Column, ...]:
    """Return a column for each field of a record. A field that may be None may be null."""
    columns = []
    for name, hint in get_type_hints(record).items():
        types = get_args(hint) or (hint,)
        [type_] = [kind for kind in types if kind is not type(None)]
        columns.append(Column(name, type_, nullable=len(types) > 1))
    return tuple(columns)


MACHINE = columns_of(Machine)
DISTURBED = 1  # a rank, see `rank`
KERNEL_KEY = ("device", "library", "threads", "problem", "pass")


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of row. `own_key` names the columns of `own` that tell the rows of a kernel apart."""

    name: str
    own: tuple[Column, ...]
    own_key: tuple[str, ...]
    keeps_mini_batch: bool = False

    @cached_property
    def columns(self) -> dict[str, Column]:
        """The columns of a row, by name."""
        shared = (Column(name, str) for name in ("problem", "pass", "measured_at", "version"))
        return {column.name: column for column in (*MACHINE, *shared, *self.own)}

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return (*KERNEL_KEY, *self.own_key)

    def problem_text(self, problem: Problem) -> str:
        """Return the text that stands for a problem in rows of this kind."""
        return str(problem) if self.keeps_mini_batch else problem_key(problem)

    def row(
        self, machine: Machine, kernel: Kernel, own: Mapping[str, Any], *, measured_at: str | None = None
    ) -> dict[str, Any]:
        """Return a row of this kind for a kernel on a machine. `own` has the values of its own columns.

        Without `measured_at` the row is measured now.
        """
        return {
            **vars(machine),
            "problem": self.problem_text(kernel.problem),
            "pass": kernel.pass_,
            "measured_at": measured_at or datetime.now(UTC).isoformat(timespec="seconds"),
            "version": mucudnn.__version__,
            **{column.name: own[column.name] for column in self.own},
        }

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row with its texts in their usual form. Raise ValueError if it is not of this kind."""
        if missing := self.columns.keys() - values.keys():
            raise ValueError(f"there is no {min(missing)}")
        if extra := values.keys() - self.columns.keys():
            raise ValueError(f"{min(extra)!r} is not a column")
        row = {name: column.checked(values[name]) for name, column in self.columns.items()}
        if row["pass"] not in PASSES:
            raise ValueError(f"pass is {row['pass']!r}, not one of {', '.join(PASSES)}")
        if self is ENUMERATION:
            parse_candidates(row["candidates"])
        if self is TRIAL and row["is_invariant"] not in (0, 1):
            raise ValueError(f"is_invariant is {row['is_invariant']}, not 0 or 1")
        row["problem"] = _full_text(self, row["problem"])
        row["measured_at"] = _in_utc(row["measured_at"])
        return row

    def text_of_key(self, own: Mapping[str, Any]) -> str:
        """Return the values of the kind's own key as one text."""
        return json.dumps([own[name] for name in self.own_key])


def rank(row: Mapping[str, Any]) -> int:
    """Return the rank of a row. Of two rows with the same key, the one of the higher rank stays.

    From the lowest to the highest: a prediction that an algorithm is too slow, a time that other programs
    disturbed, a time from a race, and all others.
    """
    if row.get("status") == UNLIKELY:
        return 0
    if row.get("busy_tries"):
        return DISTURBED
    return 2 if RACED in row.get("notes", "").split() else 3


def record_of(record: type[Record], row: Mapping[str, Any]) -> Record:
    """Return the record that a row holds."""
    return record(**{column.name: row[column.name] for column in columns_of(record)})  # type: ignore[arg-type]  # a type is hashable


@lru_cache(maxsize=4096)
def _full_text(kind: Kind, problem: str) -> str:
    parsed: Problem = parse_descriptor(problem)[0]
    return kind.problem_text(parsed)


def _in_utc(text: str) -> str:
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


MEASUREMENT = Kind("measurement", columns_of(Measurement), ("micro_batch", "algorithm"))
COMPARISON = Kind(
    "comparison",
    (Column("undivided", str), Column("divided", str), *columns_of(Comparison)),
    ("undivided", "divided"),
    keeps_mini_batch=True,
)
GROUP_COMPARISON = Kind(
    "group_comparison",
    (Column("division", str), Column("channel_groups", str), *columns_of(GroupsComparison)),
    ("division", "channel_groups"),
    keeps_mini_batch=True,
)
# A row lists all algorithms that an engine can run at a micro-batch size, measured or not.
ENUMERATION = Kind("enumeration", (Column("micro_batch", int), Column("candidates", str)), ("micro_batch",))
# A step is filed under the forward pass of its first convolution.
STEP_TIME = Kind("step_time", columns_of(StepTime), ("step", "way"), keeps_mini_batch=True)
# `is_invariant` is 1 if an algorithm gives each sample of a micro-batch the bits that it gets alone, else 0.
# A GPU's driver compiles some kernels, so another driver's outcome does not count.
TRIAL = Kind(
    "trial",
    (
        Column("micro_batch", int), Column("algorithm", str), Column("driver", str),
        Column("is_invariant", int),
    ),
    ("micro_batch", "algorithm", "driver"),
)  # fmt: skip
KINDS = (MEASUREMENT, COMPARISON, GROUP_COMPARISON, ENUMERATION, STEP_TIME, TRIAL)
# The counts are about the programs that use one file, so they are neither exported nor merged.
STEP_USES = Kind("step_uses", (Column("step", str), *columns_of(StepUses)), ("step",), keeps_mini_batch=True)

Row: TypeAlias = tuple[Kind, dict[str, Any]]

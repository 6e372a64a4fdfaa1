"""The kinds of rows in a cache, in the one place that names their columns and says which rows are valid.

A kind's own columns are mostly the fields of its record in `records`, whose annotations say which values are
valid. The machine and the kernel precede them, and the row's origin follows. The cache's file, exported lines
and keys are made from these columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property, lru_cache
from typing import Annotated, Any, Literal, TypeAlias, TypedDict, TypeVar, get_type_hints

import msgspec

import mucudnn
from mucudnn._native import Problem, parse_candidates, parse_descriptor
from mucudnn.codec import Measured, Positive, convert
from mucudnn.costs.records import (
    RACED,
    UNLIKELY,
    Comparison,
    Machine,
    Measurement,
)
from mucudnn.problems.descriptor import problem_key
from mucudnn.problems.kernels import PASSES, Kernel

Record = TypeVar("Record")

FORMAT = 4  # the version of the file and of exported rows, which changes with any column


@cache  # reading the type hints takes 0.5 ms
def columns_of(record: type) -> Mapping[str, Any]:
    """Return a column for each field of a record, with the type of its values."""
    return get_type_hints(record, include_extras=True)


KERNEL_KEY = ("device", "library", "threads", "problem", "pass")


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of row. `own_key` names the columns of `own` that tell the rows of a kernel apart.

    If `of_version`, rows that another version of mucudnn added do not count.
    """

    name: str
    own: Mapping[str, Any]
    own_key: tuple[str, ...]
    keeps_mini_batch: bool = False
    of_version: bool = False

    @cached_property
    def columns(self) -> Mapping[str, Any]:
        """The columns of a row, by name, with the types of their values."""
        return {
            **columns_of(Machine),
            "problem": str,
            "pass": Literal[PASSES],
            "measured_at": Annotated[datetime, msgspec.Meta(tz=True)],
            "version": str,
            **self.own,
        }

    @cached_property
    def _type(self) -> Any:
        return TypedDict(self.name, self.columns)  # type: ignore[operator]  # its columns are not written here

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
            **{name: own[name] for name in self.own},
        }

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row with its texts in their usual form. Raise ValueError if it is not of this kind."""
        if extra := values.keys() - self.columns.keys():
            raise ValueError(f"{min(extra)!r} is not a column")
        row: dict[str, Any] = convert(values, self._type)
        msgspec.json.encode(row)  # raises a ValueError for half a surrogate pair
        if self is ENUMERATION:
            parse_candidates(row["candidates"])
        row["problem"] = _full_text(self, row["problem"])
        # In UTC and to the second, so that times compare as text.
        row["measured_at"] = row["measured_at"].astimezone(UTC).isoformat(timespec="seconds")
        return row

    def own_key_of(self, row: Mapping[str, Any]) -> list[Any]:
        """Return the values of the kind's own key."""
        return [row[name] for name in self.own_key]


def rank(row: Mapping[str, Any]) -> int:
    """Return the rank of a row. Of two rows with the same key, the one of the higher rank stays.

    From the lowest to the highest: a prediction that an algorithm is too slow, a time that other programs
    disturbed, a time from a race, and all others.
    """
    if row.get("status") == UNLIKELY:
        return 0
    if row.get("busy_tries"):
        return 1
    return 2 if RACED in row.get("notes", "").split() else 3


def record_of(record: type[Record], row: Mapping[str, Any]) -> Record:
    """Return the record that a row holds."""
    return record(**{name: row[name] for name in columns_of(record)})  # type: ignore[arg-type]  # a type is hashable


@lru_cache(maxsize=4096)
def _full_text(kind: Kind, problem: str) -> str:
    parsed: Problem = parse_descriptor(problem)[0]
    return kind.problem_text(parsed)


MEASUREMENT = Kind("measurement", columns_of(Measurement), ("micro_batch", "algorithm"))
COMPARISON = Kind(
    "comparison",
    {"undivided": str, "divided": str, **columns_of(Comparison)},
    ("undivided", "divided"),
    keeps_mini_batch=True,
)
# A row lists all algorithms that an engine can run at a micro-batch size, measured or not.
ENUMERATION = Kind("enumeration", {"micro_batch": Positive, "candidates": str}, ("micro_batch",))
# The time of a model's whole step, or of one call with all its passes, in one of several ways to run it.
# `step` is the digest of all calls to convolutions in the step, or of the configurations of the passes. Steps
# are filed under the forward pass of their first convolution.
STEP_TIME = Kind(
    "step_time",
    {"step": str, "way": str, "time_ms": Measured},
    ("step", "way"),
    keeps_mini_batch=True,
    of_version=True,
)
# `is_invariant` is 1 if an algorithm gives each sample of a micro-batch the bits that it gets alone, else 0.
# A GPU's driver compiles some kernels, so another driver's outcome does not count.
TRIAL = Kind(
    "trial",
    {"micro_batch": Positive, "algorithm": str, "driver": str, "is_invariant": Literal[0, 1]},
    ("micro_batch", "algorithm", "driver"),
    of_version=True,
)
KINDS = (MEASUREMENT, COMPARISON, ENUMERATION, STEP_TIME, TRIAL)

Row: TypeAlias = tuple[Kind, dict[str, Any]]

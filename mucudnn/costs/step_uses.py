"""How often the times of a step were used since they were last measured or checked.

The counts are about this file, so exported and merged rows lack them, and a replaced file begins at 0.
"""

from typing import NamedTuple

from mucudnn.costs.file import STEP_USES
from mucudnn.costs.records import Machine
from mucudnn.costs.rows import CacheRows
from mucudnn.costs.schema import KERNEL_KEY, STEP_TIME
from mucudnn.problems.kernels import Kernel

_KEY = (*KERNEL_KEY, "step")
_NAMES = ", ".join(f'"{column}"' for column in _KEY)
_SAME = " AND ".join(f'"{column}" = ?' for column in _KEY)
_INSERT = f"INSERT INTO {STEP_USES} ({_NAMES}, uses, checks) VALUES ({', '.join('?' * len(_KEY))}, ?, ?) "
_CONFLICT = f"ON CONFLICT ({_NAMES}) DO UPDATE SET "


class StepUses(NamedTuple):
    """The uses of a step's times, and how many checks in a row have confirmed them."""

    uses: int
    checks: int


def add_uses(cache: CacheRows, machine: Machine, kernel: Kernel, step: str, count: int) -> StepUses:
    """Count uses of a step's times. Return all of them so far. Raise UnwritableError."""
    key = _key(machine, kernel, step)
    cache.query(f"{_INSERT}{_CONFLICT}uses = uses + excluded.uses", (*key, count, 0))
    # A damaged row may hold a text or a negative number.
    counts = ", ".join(f"max(CAST({name} AS INTEGER), 0)" for name in StepUses._fields)
    rows = cache.query(f"SELECT {counts} FROM {STEP_USES} WHERE {_SAME}", key)
    return StepUses(*rows[0]) if rows else StepUses(count, 0)


def begin_uses(cache: CacheRows, machine: Machine, kernel: Kernel, step: str, checks: int) -> None:
    """Count the uses from 0 again after a measurement or a check. Raise UnwritableError."""
    cache.query(
        f"{_INSERT}{_CONFLICT}uses = excluded.uses, checks = excluded.checks",
        (*_key(machine, kernel, step), 0, checks),
    )


def forget_times(cache: CacheRows, machine: Machine, kernel: Kernel, step: str) -> None:
    """Delete the times of a step that a check has contradicted. Raise UnwritableError."""
    key = _key(machine, kernel, step)
    for name in (STEP_TIME.name, STEP_USES):
        cache.query(f"DELETE FROM {name} WHERE {_SAME}", key)


def forget_unused(cache: CacheRows) -> None:
    """Delete the counts of steps without times. Raise UnwritableError."""
    cache.query(f"DELETE FROM {STEP_USES} WHERE step NOT IN (SELECT step FROM {STEP_TIME.name})")


def _key(machine: Machine, kernel: Kernel, step: str) -> tuple[object, ...]:
    return (*machine.identity, STEP_TIME.problem_text(kernel.problem), kernel.pass_, step)

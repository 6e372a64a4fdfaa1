"""A machine and a kernel for the rows of a cache, and these rows counted and changed."""

from collections.abc import Callable
from typing import Any

from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Machine
from mucudnn.costs.schema import KERNEL_KEY, MEASUREMENT, Kind
from mucudnn.problems.kernels import Kernel

HERE = Machine("host", "a device", "a library 1.0", 1)
PROBLEM = parse_descriptor("mb8_ic4ih5_oc4_kh3")[0]
KERNEL = Kernel(PROBLEM, "forward")


def times_in(cache: Cache) -> list[dict[str, Any]]:
    """Return the measurements that have a time."""
    return [row for row in cache.select(MEASUREMENT) if row["time_ms"] is not None]


def key_of(kind: Kind, row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the values that identify a row among those of its kind."""
    return *(row[name] for name in KERNEL_KEY), *kind.own_key_of(row)


def change_rows(cache: Cache, kind: Kind, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace values of the rows of a kind by those that `change` returns for a row."""
    rows = cache.select(kind)
    assert rows
    cache.query("DELETE FROM rows WHERE kind = ?", (kind.name,))
    cache.merge((kind, row | change(row)) for row in rows)

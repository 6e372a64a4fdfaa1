"""The cache: an sqlite file of everything that was ever measured, committed row by row."""

import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import platformdirs

from mucudnn import __version__, cache_file, settings
from mucudnn._native import Problem
from mucudnn.descriptor import geometry, problem_key
from mucudnn.errors import MucudnnError, NewerFileError
from mucudnn.records import Comparison, Machine, Measurement

_MACHINE = ("engine", "device", "library", "threads")
_KEY = ("device", "library", "threads", "problem", "pass")
_MEASURED = (
    "micro_batch",
    "algorithm",
    "status",
    "workspace",
    "notes",
    "median_ms",
    "spread_ms",
    "accumulator",
)
_COMPARED = (
    "undivided_ms", "divided_ms", "undivided_spread_ms", "divided_spread_ms",
    "error", "same_algorithms_error", "undivided_error",
)  # fmt: skip


def default_path() -> Path:
    """MUCUDNN_CACHE, else the user's cache directory."""
    given = settings.CACHE.read()
    return Path(given) if given else Path(platformdirs.user_cache_dir("mucudnn")) / "cache.sqlite"


class Cache:
    """An open cache file, or its copy in memory. Closed by `with`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, kept: bool) -> None:
        self.path = path
        self.kept = kept  # whether what is added will be there next time
        self._connection = connection

    @classmethod
    def open(cls, path: Path) -> "Cache":
        """The file, made where it is missing. Raises UnwritableError, NewerFileError, MucudnnError."""
        return cls(path, cache_file.open_file(path), kept=True)

    @classmethod
    def read_only(cls, path: Path) -> "Cache":
        """A copy in memory of an existing cache. Raises NewerFileError, MucudnnError."""
        return cls(path, cache_file.copy_file(path), kept=False)

    @classmethod
    def in_memory(cls, path: Path) -> "Cache":
        """What `path` holds, where it can be read, and otherwise an empty cache; nothing is kept."""
        try:
            return cls.read_only(path)
        except NewerFileError:
            raise
        except MucudnnError:
            return cls(path, cache_file.empty(), kept=False)

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def machines(self) -> list[Machine]:
        """All that measurements were made on."""
        rows = self.query(f"SELECT DISTINCT {', '.join(_MACHINE)} FROM measurements ORDER BY 1, 2, 3, 4")
        return [Machine(*row) for row in rows]

    def measurements(self, machine: Machine, problem: Problem, pass_: str) -> list[Measurement]:
        """All of the problem's geometry, at any size, by size and algorithm."""
        rows = self.query(
            f"SELECT {', '.join(_MEASURED)} FROM measurements WHERE {_where(_KEY)} "
            "ORDER BY micro_batch, algorithm",
            (*_identity(machine), problem_key(problem), pass_),
        )
        return [Measurement(*row) for row in rows]

    def add(self, machine: Machine, problem: Problem, pass_: str, measured: Measurement) -> None:
        """Keep one measurement, at once; a former one of the same algorithm and size is replaced."""
        values = {
            **_columns(machine, _MACHINE),
            "problem": problem_key(problem),
            "data_type": problem.data_type,
            "layout": problem.layout,
            "math": problem.math,
            **geometry(problem),
            "pass": pass_,
            **_columns(measured, _MEASURED),
        }
        self._upsert("measurements", values)

    def comparison(
        self, machine: Machine, problem: Problem, pass_: str, undivided: str, divided: str
    ) -> Comparison | None:
        """Of two configurations, given as text; `undivided` is empty where none fits."""
        rows = self.query(
            f"SELECT {', '.join(_COMPARED)} FROM comparisons WHERE {_where((*_KEY, 'undivided', 'divided'))}",
            (*_identity(machine), str(problem), pass_, undivided, divided),
        )
        return Comparison(*rows[0]) if rows else None

    def add_comparison(
        self,
        machine: Machine,
        problem: Problem,
        pass_: str,
        undivided: str,
        divided: str,
        compared: Comparison,
    ) -> None:
        """Keep one comparison, at once."""
        values = {
            **_columns(machine, _MACHINE),
            "problem": str(problem),
            "pass": pass_,
            "undivided": undivided,
            "divided": divided,
            **_columns(compared, _COMPARED),
        }
        self._upsert("comparisons", values)

    def query(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        """All rows of a statement. Raises MucudnnError."""
        try:
            return self._connection.execute(sql, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise MucudnnError(f"the cache {self.path} failed: {error}") from None

    def _upsert(self, table: str, values: dict[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        row = {**values, "measured_at": now, "version": __version__}
        names = ", ".join(f'"{name}"' for name in row)
        self.query(
            f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({', '.join('?' * len(row))})", row.values()
        )


def _columns(record: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _identity(machine: Machine) -> tuple[str, str, int]:
    return machine.device, machine.library, machine.threads


def _where(columns: Iterable[str]) -> str:
    return " AND ".join(f"{column} = ?" for column in columns)

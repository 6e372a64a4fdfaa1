"""The cache: an sqlite file of the algorithms that engines list and of all measurements, saved row by row."""

import json
import os
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import mucudnn
from mucudnn import settings
from mucudnn._native import format_candidates, parse_candidates, seconds_to_next_try
from mucudnn.codec import convert
from mucudnn.costs.claims import Claims
from mucudnn.costs.file import CacheError, cache_errors, is_cache, open_to_read, open_to_write
from mucudnn.costs.journal import take_journal
from mucudnn.costs.records import (
    Comparison,
    Listed,
    Machine,
    Measurement,
    StepUses,
)
from mucudnn.costs.remeasuring import remeasuring_since
from mucudnn.costs.rows import OF_KERNEL, CacheRows
from mucudnn.costs.schema import (
    COMPARISON,
    ENUMERATION,
    MEASUREMENT,
    STEP_TIME,
    Kind,
    columns_of,
    record_of,
)
from mucudnn.errors import UsageError
from mucudnn.input import expanded
from mucudnn.listener import Listener
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration


def default_path() -> Path:
    """Return the path in MUCUDNN_CACHE, else one in the user's cache directory.

    A relative path stays in the folder in which the process first asked for it. Raise UsageError; CacheError
    if the user has no such directory.
    """
    path = _absolute(settings.CACHE.read() or f"{_user_directory()}/mucudnn/cache.sqlite")
    if not path.name:
        raise UsageError(f"{settings.CACHE.variable}: '{path}' is a folder, not a file")
    return path


@cache
def _absolute(path: str) -> Path:
    return Path(path).absolute()


def _user_directory() -> str:
    """Return the folder of XDG_CACHE_HOME, else `.cache` in the user's home. Raise CacheError."""
    folder = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    try:
        return expanded(folder)
    except UsageError:
        raise CacheError(
            "there is no folder for the cache, because HOME is not set and this user has no home: name a "
            "file in MUCUDNN_CACHE"
        ) from None


class Cache(CacheRows):
    """An open cache of records.

    Measurements from before `since`, a time in ISO 8601, do not count: the cache acts as if it lacked them.
    """

    @classmethod
    def open(cls, path: Path, *, listener: Listener | None = None, needed: bool = True) -> "Cache":
        """Open the file, and make it if it is missing. Raise CacheError, NewerFileError, MucudnnError.

        If a file that is not `needed` fails later, the work goes on in memory.
        """
        since = remeasuring_since()
        with cache_errors(path):
            if not is_cache(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            claims = Claims(path)  # fails at once on a file system without locks, where sqlite would wait
        cache = cls(path, open_to_write, claims=claims, listener=listener, since=since, needed=needed)
        try:
            cache.query("SELECT 1")  # opens the file
        except BaseException:
            cache.__exit__()
            raise
        return cache

    @classmethod
    def read_only(cls, path: Path) -> "Cache":
        """Open an existing cache to which nothing can be added. Raise CacheError, MucudnnError."""
        cache = cls(path, open_to_read)
        cache.query("SELECT 1")
        return cache

    @classmethod
    def in_memory(cls, path: Path, listener: Listener | None = None) -> "Cache":
        """Return a copy in memory of the cache at `path`, or an empty cache if it cannot be read."""
        memory = cls(path, listener=listener, since=remeasuring_since())
        memory.merge(memory._rows_of_file())
        return memory

    @classmethod
    def of_user(cls, listener: Listener, *, needed: bool) -> "Cache":
        """Open the user's cache, with the measurements of programs under `mucudnn run`.

        If it cannot be written and is not `needed`, warn and return a copy in memory. Raise MucudnnError.
        """
        path = Path(os.devnull)
        try:
            path = default_path()
            cache = cls.open(path, listener=listener, needed=needed)
        except CacheError as error:
            if needed:
                raise
            cache = cls.in_memory(path, listener)
            cache._warn_lost(error)
        try:
            take_journal(cache)
        except BaseException:
            cache.__exit__()
            raise
        return cache

    def machines(self) -> list[Machine]:
        """Return the machines that measurements were made on."""
        sql = (
            "SELECT min(engine), device, library, threads FROM rows WHERE kind = ? "
            "GROUP BY device, library, threads"
        )
        return self.attempt(
            lambda connection: [
                convert(dict(zip(columns_of(Machine), row, strict=True)), Machine)
                for row in connection.execute(sql, (MEASUREMENT.name,))
            ]
        )

    def measurements(self, machine: Machine, kernel: Kernel, *, due: bool = True) -> list[Measurement]:
        """Return all measurements of a kernel at any micro-batch size, sorted by size and algorithm.

        Without `due`, disturbed ones that are to be made again are omitted.
        """
        rows = self._rows_of_kernel(MEASUREMENT, machine, kernel)
        rows.sort(key=lambda row: (row["micro_batch"], row["algorithm"]))
        return [record_of(Measurement, row) for row in rows if due or not _is_due(row)]

    def add(self, machine: Machine, kernel: Kernel, measured: Measurement) -> None:
        """Save a measurement at once. It replaces an earlier one of the same algorithm and size.

        It does not replace one of a higher rank. A disturbed one counts the disturbed ones before it.
        """
        if measured.busy_tries:
            earlier = self.find(MEASUREMENT, machine, kernel, measured.micro_batch, measured.algorithm)
            tries = measured.busy_tries + (0 if earlier is None else earlier["busy_tries"])
            measured = replace(measured, busy_tries=tries)
        self.put(MEASUREMENT, machine, kernel, vars(measured))

    def enumerations(self, machine: Machine, kernel: Kernel) -> dict[int, list[Listed]]:
        """Return what can run at each size that the engine has listed completely, in the engine's order."""
        return {
            row["micro_batch"]: [Listed(*candidate) for candidate in parse_candidates(row["candidates"])]
            for row in self._rows_of_kernel(ENUMERATION, machine, kernel)
        }

    def add_enumerations(
        self,
        machine: Machine,
        kernel: Kernel,
        candidates: Mapping[int, Sequence[Listed]],
        failures: Sequence[Measurement] = (),
    ) -> None:
        """Save all that can run at some sizes, and the algorithms that cannot."""
        self.put(MEASUREMENT, machine, kernel, *map(vars, failures))
        texts = {size: format_candidates(listed) for size, listed in candidates.items()}
        rows = ({"micro_batch": size, "candidates": text} for size, text in texts.items())
        self.put(ENUMERATION, machine, kernel, *rows)

    def comparison(
        self,
        machine: Machine,
        kernel: Kernel,
        undivided: Configuration | None,
        divided: Configuration | ChannelGroups,
    ) -> Comparison | None:
        """Return the comparison of two configurations; `undivided` is None if none fits."""
        row = self.find(COMPARISON, machine, kernel, *_pair(undivided, divided))
        return None if row is None else record_of(Comparison, row)

    def add_comparison(
        self,
        machine: Machine,
        kernel: Kernel,
        undivided: Configuration | None,
        divided: Configuration | ChannelGroups,
        compared: Comparison,
    ) -> None:
        """Save a comparison at once."""
        key = dict(zip(COMPARISON.own_key, _pair(undivided, divided), strict=True))
        self.put(COMPARISON, machine, kernel, key | vars(compared))

    def step_times(self, machine: Machine, kernel: Kernel, step: str) -> dict[str, float]:
        """Return the ms of whole steps by the way they ran, which this version of mucudnn has measured.

        `kernel` is the forward pass of the step's first convolution. A single call with all its passes is a
        step, too.
        """
        rows = self._rows_of_kernel(STEP_TIME, machine, kernel)
        return {row["way"]: row["time_ms"] for row in rows if row["step"] == step}

    def add_step_times(
        self, machine: Machine, kernel: Kernel, step: str, times: Mapping[str, float], checks: int = 0
    ) -> None:
        """Save the ms of whole steps by the way they ran, and reset their uses.

        `checks` is how many checks in a row led to the same choice, this one included.
        """
        rows = ({"step": step, "way": way, "time_ms": ms} for way, ms in times.items())
        self.put(STEP_TIME, machine, kernel, *rows)
        self.reset_uses(machine, kernel, step, checks)

    def add_uses(self, machine: Machine, kernel: Kernel, step: str, count: int) -> StepUses:
        """Count uses of a step's times. Return all of them so far."""
        key = _key_of_uses(machine, kernel, step)

        def work(connection: sqlite3.Connection) -> StepUses:
            add = "INSERT INTO step_uses VALUES (?, ?, 0) ON CONFLICT (step) DO UPDATE SET uses = uses + ?"
            connection.execute(add, (key, count, count))
            (uses,) = connection.execute("SELECT uses, checks FROM step_uses WHERE step = ?", (key,))
            return convert(uses, StepUses)

        return self.attempt(work)

    def reset_uses(self, machine: Machine, kernel: Kernel, step: str, checks: int) -> None:
        """Reset the uses of a step's times to 0, and keep how many checks have confirmed the times."""
        key = _key_of_uses(machine, kernel, step)
        self.query("INSERT OR REPLACE INTO step_uses VALUES (?, 0, ?)", (key, checks))

    def find(self, kind: Kind, machine: Machine, kernel: Kernel, *own_key: object) -> dict[str, Any] | None:
        """Return the row of a kernel that has this key, or None if there is none or it does not count."""
        rows = self._rows_of_kernel(kind, machine, kernel, "own_key = ?", json.dumps(own_key))
        return rows[0] if rows else None

    def _rows_of_kernel(
        self, kind: Kind, machine: Machine, kernel: Kernel, where: str = "true", *values: str
    ) -> list[dict[str, Any]]:
        """Return the rows of a kernel that count and match a condition."""
        since = "" if kind is ENUMERATION else self._since
        key = *machine.identity, kind.problem_text(kernel.problem), kernel.pass_
        return [
            row
            for row in self.select(kind, f"{OF_KERNEL} AND {where}", (*key, *values))
            if row["measured_at"] >= since and (row["version"] == mucudnn.__version__ or not kind.of_version)
        ]


def _is_due(row: Mapping[str, Any]) -> bool:
    """Return whether to make a disturbed measurement again.

    It is due after a time that doubles with each disturbed try, however slow it looks: on a busy machine,
    threads that spin while another one waits for a core made a time 30 times too long.
    """
    tries, age = row["busy_tries"], datetime.now(UTC) - datetime.fromisoformat(row["measured_at"])
    if not tries or row["time_ms"] is None:
        return False
    return age >= timedelta(seconds=seconds_to_next_try(tries))


def _key_of_uses(machine: Machine, kernel: Kernel, step: str) -> str:
    return f"{machine} {kernel.problem} {kernel.pass_} {step}"


def _pair(undivided: Configuration | None, divided: Configuration | ChannelGroups) -> tuple[str, str]:
    """Return the key of a comparison: the texts of its configurations, which are empty for None."""
    return str(undivided or ""), str(divided)

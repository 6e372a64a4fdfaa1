"""The cache: an sqlite file of the algorithms that engines list and of all measurements, saved row by row."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import mucudnn
from mucudnn import settings
from mucudnn._native import format_candidates, parse_candidates, seconds_to_next_try
from mucudnn.costs import file as cache_file
from mucudnn.costs import salvage
from mucudnn.costs.claims import Claims
from mucudnn.costs.exchange import checked_value
from mucudnn.costs.file import Database, UnwritableError
from mucudnn.costs.journal import JournalError, take_journal
from mucudnn.costs.records import Comparison, GroupsComparison, Listed, Machine, Measurement, StepTime
from mucudnn.costs.remeasuring import remeasuring_since
from mucudnn.costs.rows import CacheRows, warn_once
from mucudnn.costs.schema import (
    COMPARISON,
    ENUMERATION,
    GROUP_COMPARISON,
    KERNEL_KEY,
    MACHINE,
    MEASUREMENT,
    STEP_TIME,
    TRIAL,
    UNDISTURBED,
    Row,
    Table,
    record_of,
)
from mucudnn.errors import MucudnnError, NewerFileError, UsageError
from mucudnn.input import expanded
from mucudnn.listener import Listener
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration

_OF_KERNEL = "WHERE " + " AND ".join(f'"{column}" = ?' for column in KERNEL_KEY)


def default_path() -> Path:
    """Return the path in MUCUDNN_CACHE, else one in the user's cache directory.

    A relative path stays in the folder in which the process first asked for it. Raise UsageError;
    UnwritableError if the user has no such directory.
    """
    path = _absolute(settings.CACHE.read() or f"{_user_directory()}/mucudnn/cache.sqlite")
    if not path.name:
        raise UsageError(f"{settings.CACHE.variable}: '{path}' is a folder, not a file")
    return path


@cache
def _absolute(path: str) -> Path:
    return Path(path).absolute()


def _user_directory() -> str:
    """Return the folder of XDG_CACHE_HOME, else `.cache` in the user's home. Raise UnwritableError."""
    folder = os.environ.get("XDG_CACHE_HOME", "").strip() or "~/.cache"
    try:
        return expanded(folder)
    except UsageError:
        raise UnwritableError(
            "there is no folder for the cache, because HOME is not set and this user has no home: name a "
            "file in MUCUDNN_CACHE"
        ) from None


class Cache(CacheRows):
    """An open cache of records.

    Measurements from before `since`, a time in ISO 8601, do not count: the cache acts as if it lacked them.
    """

    def __init__(
        self,
        path: Path,
        database: Database,
        *,
        claims: Claims | None = None,
        listener: Listener | None = None,
        needed: bool = True,
        since: str | None = None,
    ) -> None:
        super().__init__(path, database, claims=claims, listener=listener, needed=needed)
        self._since = since

    @classmethod
    def open(cls, path: Path, *, listener: Listener | None = None, needed: bool = True) -> "Cache":
        """Open the file, and make it if it is missing. Raise UnwritableError, NewerFileError, MucudnnError.

        If a file that is not `needed` fails later, the work goes on in memory.
        """
        since = remeasuring_since()
        database, claims, message = salvage.open_file(path)
        if message is not None and listener is not None:
            listener.message(message)
        return cls(path, database, claims=claims, listener=listener, needed=needed, since=since)

    @classmethod
    def read_only(cls, path: Path, listener: Listener | None = None) -> "Cache":
        """Open an existing cache to which nothing can be added. Raise NewerFileError, MucudnnError.

        With a `listener`, use the rows that can be read even if others are damaged.
        """
        return cls(path, cache_file.open_to_read(path), listener=listener, needed=listener is None)

    @classmethod
    def in_memory(cls, path: Path) -> "Cache":
        """Return a copy in memory of the cache at `path`, or an empty cache if it cannot be read."""
        try:
            with cls.read_only(path) as file:
                return cls(path, salvage.copy_in_memory(file._database))
        except NewerFileError:
            raise
        except MucudnnError:
            return cls(path, cache_file.in_memory())

    @classmethod
    def of_user(cls, listener: Listener, *, needed: bool) -> "Cache":
        """Open the user's cache, with the measurements of programs under `mucudnn run`.

        If it cannot be written and is not `needed`, warn and return a copy in memory. Raise MucudnnError.
        """
        path = Path(os.devnull)
        try:
            path = default_path()
            cache = cls.open(path, listener=listener, needed=needed)
        except UnwritableError as error:
            if needed:
                raise
            warn_once(listener, f"{error}; what is measured from now on is lost afterwards")
            cache = cls.in_memory(path)
        try:
            take_journal(cache)
        except JournalError as error:
            warn_once(listener, str(error))
        except BaseException:
            cache.__exit__()
            raise
        return cache

    def machines(self) -> list[Machine]:
        """Return the machines that measurements were made on."""
        return self.attempt(self._find_machines)

    def _find_machines(self) -> list[Machine]:
        columns, machines = ", ".join(column.name for column in MACHINE), list[Machine]()

        def add_first(where: str, *values: object) -> bool:
            rows = self._rows_of(
                f"SELECT {columns} FROM measurements {where} ORDER BY device, library, threads LIMIT 1",
                values,
            )
            for row in rows:
                machine = Machine(*map(checked_value, MACHINE, row))
                if machines and machine.identity <= machines[-1].identity:
                    raise ValueError("the index of the measurements is out of order")
                machines.append(machine)
            return bool(rows)

        # Step through the index from machine to machine, past all rows of each.
        more = add_first("")
        while more:
            device, library, threads = machines[-1].identity
            more = (
                add_first("WHERE device = ? AND library = ? AND threads > ?", device, library, threads)
                or add_first("WHERE device = ? AND library > ?", device, library)
                or add_first("WHERE device > ?", device)
            )
        return machines

    def measurements(self, machine: Machine, kernel: Kernel) -> list[Measurement]:
        """Return all measurements of a kernel at any micro-batch size, sorted by size and algorithm."""
        rows = self._kernel_rows(MEASUREMENT, machine, kernel)
        by_place = {(row["micro_batch"], row["algorithm"]): row for row in rows}
        return [record_of(Measurement, by_place[place]) for place in sorted(by_place)]

    def add(self, machine: Machine, kernel: Kernel, measured: Measurement) -> None:
        """Save a measurement at once. It replaces an earlier one of the same algorithm and size.

        A disturbed measurement does not replace an undisturbed one. It counts the disturbed ones before it.
        """
        if measured.busy_tries:
            earlier = self._find(
                MEASUREMENT, machine, kernel, {name: vars(measured)[name] for name in MEASUREMENT.own_key}
            )
            tries = measured.busy_tries + (0 if earlier is None else earlier["busy_tries"])
            measured = replace(measured, busy_tries=tries)
        self._keep(MEASUREMENT, machine, kernel, vars(measured))

    def due(self, machine: Machine, kernel: Kernel, now: datetime | None = None) -> set[tuple[int, str]]:
        """Return the (micro-batch size, algorithm) pairs of disturbed measurements to make again.

        Each is due after a time that doubles with each disturbed try, however slow it looks: on a busy
        machine, threads that spin while another one waits for a core made a time 30 times too long.
        """
        now = now or datetime.now(UTC)
        return {
            (row["micro_batch"], row["algorithm"])
            for row in self._kernel_rows(MEASUREMENT, machine, kernel)
            if row["busy_tries"]
            and row["time_ms"] is not None
            and now - datetime.fromisoformat(row["measured_at"])
            >= timedelta(seconds=seconds_to_next_try(row["busy_tries"]))
        }

    def enumerations(self, machine: Machine, kernel: Kernel) -> dict[int, list[Listed]]:
        """Return what can run at each size that the engine has listed completely, in the engine's order."""
        rows = self._kernel_rows(ENUMERATION, machine, kernel)
        texts = {row["micro_batch"]: row["candidates"] for row in rows}
        return {
            size: [Listed(*candidate) for candidate in parse_candidates(text)] for size, text in texts.items()
        }

    def add_enumerations(
        self,
        machine: Machine,
        kernel: Kernel,
        candidates: Mapping[int, Sequence[Listed]],
        failures: Sequence[Measurement] = (),
    ) -> None:
        """Save all that can run at some sizes, and the algorithms that cannot, in one transaction."""
        rows = [(MEASUREMENT, MEASUREMENT.row(machine, kernel, vars(failure))) for failure in failures]
        rows += [
            (ENUMERATION, ENUMERATION.row(machine, kernel, {"micro_batch": size, "candidates": text}))
            for size, text in ((size, format_candidates(listed)) for size, listed in candidates.items())
        ]
        self.attempt(lambda: self._count_changes(lambda: self._add_and_find(*rows)))

    def comparison(
        self, machine: Machine, kernel: Kernel, undivided: Configuration | None, divided: Configuration
    ) -> Comparison | None:
        """Return the comparison of two configurations; `undivided` is None if none fits."""
        row = self._find(COMPARISON, machine, kernel, _pair(COMPARISON, undivided, divided))
        return None if row is None else record_of(Comparison, row)

    def groups_comparison(
        self, machine: Machine, kernel: Kernel, division: Configuration, groups: ChannelGroups
    ) -> GroupsComparison | None:
        """Return the comparison of groups of channels with a division of the mini-batch."""
        row = self._find(GROUP_COMPARISON, machine, kernel, _pair(GROUP_COMPARISON, division, groups))
        return None if row is None else record_of(GroupsComparison, row)

    def add_comparison(
        self,
        machine: Machine,
        kernel: Kernel,
        first: Configuration | None,
        second: Configuration | ChannelGroups,
        compared: Comparison | GroupsComparison,
    ) -> None:
        """Save a comparison at once, with its two configurations in the order in which they are looked up."""
        table = COMPARISON if isinstance(compared, Comparison) else GROUP_COMPARISON
        self._keep(table, machine, kernel, _pair(table, first, second) | vars(compared))

    def step_times(self, machine: Machine, kernel: Kernel, step: str) -> dict[str, float]:
        """Return the ms of whole steps by the way they ran, which this version of mucudnn has measured.

        `kernel` is the forward pass of the step's first convolution. A single call with all its passes is a
        step, too.
        """
        rows = self._kernel_rows(STEP_TIME, machine, kernel)
        here = {"step": step, "version": mucudnn.__version__}
        return {row["way"]: row["time_ms"] for row in rows if here.items() <= row.items()}

    def add_step_times(
        self, machine: Machine, kernel: Kernel, step: str, times: Mapping[str, float], checks: int = 0
    ) -> None:
        """Save the ms of whole steps by the way they ran, and reset their uses, in one transaction.

        `checks` is how many checks in a row led to the same choice, this one included.
        """
        rows = [
            (STEP_TIME, STEP_TIME.row(machine, kernel, vars(StepTime(step, way, ms))))
            for way, ms in times.items()
        ]

        def work() -> None:
            self._add_and_find(*rows)
            self.reset_uses(machine, kernel, step, checks)

        self.attempt(lambda: self._count_changes(work))

    def trial(self, machine: Machine, driver: str, kernel: Kernel, algorithm: str) -> bool | None:
        """Return whether an algorithm passed its trial at the kernel's mini-batch under this driver.

        Return None without a trial, or with one of another version of mucudnn, which may try otherwise.
        """
        wanted = _trial_of(driver, kernel, algorithm) | {"version": mucudnn.__version__}
        row = self._find(TRIAL, machine, kernel, wanted)
        return None if row is None else row["is_invariant"] == 1

    def add_trial(
        self, machine: Machine, driver: str, kernel: Kernel, algorithm: str, *, is_invariant: bool
    ) -> None:
        """Save the outcome of a trial at once."""
        values = _trial_of(driver, kernel, algorithm) | {"is_invariant": int(is_invariant)}
        self._keep(TRIAL, machine, kernel, values)

    def _find(
        self, table: Table, machine: Machine, kernel: Kernel, wanted: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the row of a kernel that has these values."""
        rows = self._kernel_rows(table, machine, kernel)
        return next((row for row in rows if wanted.items() <= row.items()), None)

    def _kernel_rows(self, table: Table, machine: Machine, kernel: Kernel) -> list[dict[str, Any]]:
        """Return the rows of a kernel."""
        text = table.problem_text(kernel.problem)
        rows = self.select(table, _OF_KERNEL, (*machine.identity, text, kernel.pass_))
        if self._since is None or table is ENUMERATION:
            return rows
        return [row for row in rows if row["measured_at"] >= self._since]

    def _keep(self, table: Table, machine: Machine, kernel: Kernel, own: Mapping[str, Any]) -> None:
        row = table.row(machine, kernel, own)
        self.attempt(lambda: self._add_and_find((table, row)))

    def _add_and_find(self, *rows: Row) -> None:
        """Add rows, and look each one up, because a damaged index loses rows without an error.

        Raise ValueError, sqlite3.DatabaseError.
        """
        keeps = "" if self._since is None else f" OR measurements.measured_at < '{self._since}'"
        for table, row in rows:
            condition = f"WHERE {UNDISTURBED}{keeps}" if table is MEASUREMENT else ""
            self._rows_of(*table.upsert(row, condition))
            # The plus signs make sqlite use the index that `_kernel_rows` uses.
            same = "".join(f' AND +"{column}" = ?' for column in table.own_key)
            values = tuple(row[column] for column in table.key)
            if not self._rows_of(f"SELECT 1 FROM {table.name} {_OF_KERNEL}{same}", values):
                raise ValueError("the index does not lead to a row that was added")


def _trial_of(driver: str, kernel: Kernel, algorithm: str) -> dict[str, Any]:
    return {"micro_batch": kernel.mini_batch, "algorithm": algorithm, "driver": driver}


def _pair(table: Table, *configurations: Configuration | ChannelGroups | None) -> dict[str, Any]:
    """Return the key of a comparison: the texts of its configurations, which are empty for None."""
    return dict(zip(table.own_key, (str(each or "") for each in configurations), strict=True))

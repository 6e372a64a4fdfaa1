"""The cache: an sqlite file of the algorithms that engines list and of all measurements, saved row by row."""

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from mucudnn.costs.file import CacheError, Database, cache_errors, is_cache, open_to_read, open_to_write
from mucudnn.costs.journal import JournalError, take_journal
from mucudnn.costs.records import (
    Comparison,
    Listed,
    Machine,
    Measurement,
    StepTime,
    StepUses,
)
from mucudnn.costs.remeasuring import remeasuring_since
from mucudnn.costs.rows import CacheRows, warn_once
from mucudnn.costs.schema import (
    COMPARISON,
    ENUMERATION,
    KERNEL_KEY,
    MEASUREMENT,
    STEP_TIME,
    STEP_USES,
    TRIAL,
    Kind,
    Row,
    columns_of,
    record_of,
)
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.input import expanded
from mucudnn.listener import Listener
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration

_OF_KERNEL = " AND ".join(f'"{column}" = ?' for column in KERNEL_KEY)


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
        cache = cls(path, Database(path, open_to_write), claims=claims, listener=listener, since=since)
        try:
            cache.query("SELECT 1")  # opens the file
        except BaseException:
            cache.__exit__()
            raise
        cache._needed = needed
        return cache

    @classmethod
    def read_only(cls, path: Path) -> "Cache":
        """Open an existing cache to which nothing can be added. Raise CacheError, MucudnnError."""
        with cache_errors(path):
            if not is_cache(path):
                raise MucudnnError(f"the cache {path} does not exist or is empty")
        cache = cls(path, Database(path, open_to_read))
        cache.query("SELECT 1")
        return cache

    @classmethod
    def in_memory(cls, path: Path) -> "Cache":
        """Return a copy in memory of the cache at `path`, or an empty cache if it cannot be read."""
        memory = cls(path, Database(path), since=remeasuring_since())
        with suppress(MucudnnError), cls.read_only(path) as file:
            memory.merge(file.rows())
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

        def find(connection: sqlite3.Connection) -> list[Machine]:
            rows = connection.execute(
                "SELECT min(engine), device, library, threads FROM rows WHERE kind = ? "
                "GROUP BY device, library, threads",
                (MEASUREMENT.name,),
            ).fetchall()
            return [convert(dict(zip(columns_of(Machine), row, strict=True)), Machine) for row in rows]

        return self.attempt(find)

    def measurements(self, machine: Machine, kernel: Kernel) -> list[Measurement]:
        """Return all measurements of a kernel at any micro-batch size, sorted by size and algorithm."""
        rows = self._rows_of_kernel(MEASUREMENT, machine, kernel)
        rows.sort(key=lambda row: (row["micro_batch"], row["algorithm"]))
        return [record_of(Measurement, row) for row in rows]

    def add(self, machine: Machine, kernel: Kernel, measured: Measurement) -> None:
        """Save a measurement at once. It replaces an earlier one of the same algorithm and size.

        It does not replace one of a higher rank. A disturbed one counts the disturbed ones before it.
        """
        if measured.busy_tries:
            earlier = self._find(MEASUREMENT, machine, kernel, vars(measured))
            tries = measured.busy_tries + (0 if earlier is None else earlier["busy_tries"])
            measured = replace(measured, busy_tries=tries)
        self.put((MEASUREMENT, MEASUREMENT.row(machine, kernel, vars(measured))))

    def due(self, machine: Machine, kernel: Kernel, now: datetime | None = None) -> set[tuple[int, str]]:
        """Return the (micro-batch size, algorithm) pairs of disturbed measurements to make again.

        Each is due after a time that doubles with each disturbed try, however slow it looks: on a busy
        machine, threads that spin while another one waits for a core made a time 30 times too long.
        """
        now = now or datetime.now(UTC)
        return {
            (row["micro_batch"], row["algorithm"])
            for row in self._rows_of_kernel(MEASUREMENT, machine, kernel)
            if row["busy_tries"]
            and row["time_ms"] is not None
            and now - datetime.fromisoformat(row["measured_at"])
            >= timedelta(seconds=seconds_to_next_try(row["busy_tries"]))
        }

    def enumerations(self, machine: Machine, kernel: Kernel) -> dict[int, list[Listed]]:
        """Return what can run at each size that the engine has listed completely, in the engine's order."""
        rows = self._rows_of_kernel(ENUMERATION, machine, kernel)
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
        self.put(
            *((MEASUREMENT, MEASUREMENT.row(machine, kernel, vars(failure))) for failure in failures),
            *(
                (ENUMERATION, ENUMERATION.row(machine, kernel, {"micro_batch": size, "candidates": text}))
                for size, text in ((size, format_candidates(listed)) for size, listed in candidates.items())
            ),
        )

    def comparison(
        self,
        machine: Machine,
        kernel: Kernel,
        undivided: Configuration | None,
        divided: Configuration | ChannelGroups,
    ) -> Comparison | None:
        """Return the comparison of two configurations; `undivided` is None if none fits."""
        row = self._find(COMPARISON, machine, kernel, _pair(undivided, divided))
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
        values = _pair(undivided, divided) | vars(compared)
        self.put((COMPARISON, COMPARISON.row(machine, kernel, values)))

    def step_times(self, machine: Machine, kernel: Kernel, step: str) -> dict[str, float]:
        """Return the ms of whole steps by the way they ran, which this version of mucudnn has measured.

        `kernel` is the forward pass of the step's first convolution. A single call with all its passes is a
        step, too.
        """
        rows = self._rows_of_kernel(STEP_TIME, machine, kernel)
        here = {"step": step, "version": mucudnn.__version__}
        return {row["way"]: row["time_ms"] for row in rows if here.items() <= row.items()}

    def add_step_times(
        self, machine: Machine, kernel: Kernel, step: str, times: Mapping[str, float], checks: int = 0
    ) -> None:
        """Save the ms of whole steps by the way they ran, and reset their uses, in one transaction.

        `checks` is how many checks in a row led to the same choice, this one included.
        """
        self.put(
            *(
                (STEP_TIME, STEP_TIME.row(machine, kernel, vars(StepTime(step, way, ms))))
                for way, ms in times.items()
            ),
            _uses_row(machine, kernel, step, StepUses(0, checks)),
        )

    def add_uses(self, machine: Machine, kernel: Kernel, step: str, count: int) -> StepUses:
        """Count uses of a step's times. Return all of them so far.

        Of two processes that count at the same moment, the count of one may be lost.
        """
        row = self._find(STEP_USES, machine, kernel, {"step": step})
        uses = StepUses(count, 0) if row is None else StepUses(row["uses"] + count, row["checks"])
        if count:
            self.put(_uses_row(machine, kernel, step, uses))
        return uses

    def reset_uses(self, machine: Machine, kernel: Kernel, step: str, checks: int) -> None:
        """Reset the uses of a step's times to 0, and keep how many checks have confirmed the times."""
        self.put(_uses_row(machine, kernel, step, StepUses(0, checks)))

    def trial(self, machine: Machine, driver: str, kernel: Kernel, algorithm: str) -> bool | None:
        """Return whether an algorithm passed its trial at the kernel's mini-batch under this driver.

        Return None without a trial, or with one of another version of mucudnn, which may try otherwise.
        """
        row = self._find(TRIAL, machine, kernel, _trial_of(driver, kernel, algorithm))
        return None if row is None or row["version"] != mucudnn.__version__ else row["is_invariant"] == 1

    def add_trial(
        self, machine: Machine, driver: str, kernel: Kernel, algorithm: str, *, is_invariant: bool
    ) -> None:
        """Save the outcome of a trial at once."""
        values = _trial_of(driver, kernel, algorithm) | {"is_invariant": int(is_invariant)}
        self.put((TRIAL, TRIAL.row(machine, kernel, values)))

    def _rows_of_kernel(
        self, kind: Kind, machine: Machine, kernel: Kernel, own: Mapping[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Return the rows of a kernel, or only the one with this key."""
        rows = self.select(kind, *_of_kernel(kind, machine, kernel, own))
        if self._since is None or kind is ENUMERATION:
            return rows
        return [row for row in rows if row["measured_at"] >= self._since]

    def _find(
        self, kind: Kind, machine: Machine, kernel: Kernel, own: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the row of a kernel that has the key of these values."""
        return next(iter(self._rows_of_kernel(kind, machine, kernel, own)), None)


def _of_kernel(
    kind: Kind, machine: Machine, kernel: Kernel, own: Mapping[str, Any] | None = None
) -> tuple[str, list[Any]]:
    """Return the condition, with its values, that selects a kernel's rows or only the one with this key."""
    values = [*machine.identity, kind.problem_text(kernel.problem), kernel.pass_]
    if own is None:
        return _OF_KERNEL, values
    return f"{_OF_KERNEL} AND own_key = ?", [*values, kind.text_of_key(own)]


def _uses_row(machine: Machine, kernel: Kernel, step: str, uses: StepUses) -> Row:
    return STEP_USES, STEP_USES.row(machine, kernel, {"step": step, **uses._asdict()})


def _trial_of(driver: str, kernel: Kernel, algorithm: str) -> dict[str, Any]:
    return {"micro_batch": kernel.mini_batch, "algorithm": algorithm, "driver": driver}


def _pair(undivided: Configuration | None, divided: Configuration | ChannelGroups) -> dict[str, Any]:
    """Return the key of a comparison: the texts of its configurations, which are empty for None."""
    return {"undivided": str(undivided or ""), "divided": str(divided)}

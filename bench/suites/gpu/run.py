"""A run of a part, and its results folder: files to keep and to commit, and caches made from them."""

from __future__ import annotations

import gzip
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.lib.processes import ProgramError
from bench.lib.record import Record, append, read
from bench.suites.gpu.setting import Setting
from mucudnn._native import Engine
from mucudnn.cli.terminal import Terminal
from mucudnn.costs.cache import Cache
from mucudnn.costs.exchange import format_rows, parse_rows
from mucudnn.errors import MucudnnError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.runners import Exhaustive

MOST_FAILURES = 5  # failures in a row that end a part
FAILED = "failed"  # the metric of a failure; its record has no value, and its details say why


class UnusableDeviceError(Exception):
    """The device does not answer in this process any more; it may answer in another one."""


class Store:
    """The files in the results folder of a device and a library."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = folder / "gpu.jsonl"  # all figures, JSON lines
        self.summary = folder / "summary.md"  # the page with the tables
        self.measurements = folder / "measurements.jsonl.gz"  # the engine's, as `mucudnn cache export` writes
        self.engine_cache = folder / "cache" / "engine.sqlite"
        # It names the case in progress. If a run finds this file, that case ended the last process.
        self.at_work = folder / "cache" / "at-work.json"

    def programs_cache(self, name: str) -> Path:
        """Return the cache that programs under the drop-in share; the drop-in's journal is beside it."""
        return self.folder / "cache" / f"programs-{name}.sqlite"

    def make(self) -> None:
        """Make the folders."""
        self.engine_cache.parent.mkdir(parents=True, exist_ok=True)

    def restore(self) -> None:
        """Fill the engine's cache from the measurements that are kept: a clone has no cache."""
        self.make()
        if self.measurements.exists():
            lines = gzip.decompress(self.measurements.read_bytes()).decode().splitlines()
            with Cache.open(self.engine_cache) as cache:
                cache.merge(parse_rows(lines, self.measurements.name))

    def keep(self) -> None:
        """Write the measurements of the engine's cache to the file that is kept."""
        if self.engine_cache.exists():
            with Cache.read_only(self.engine_cache) as cache:
                rows = "".join(format_rows(cache.rows())).encode()
            _replace(self.measurements, gzip.compress(rows, mtime=0))


def _replace(path: Path, content: bytes) -> None:
    """Replace a file so that it is never half written, even if this process is killed."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)


@dataclass(frozen=True)
class Case:
    """A step that is measured as a whole, with the function that does it and the names in its records."""

    bench: str
    name: str
    measure: Callable[[], Iterable[Record]]


class Run:
    """A run that measures cases into a results folder for some seconds. Use it in a `with` statement."""

    def __init__(self, folder: Path, setting: Setting, seconds: float) -> None:
        self.setting, self.store = setting, Store(folder)
        self.store.make()
        self.deadline = time.monotonic() + seconds
        self.listener: Listener = Terminal()
        self._opened: Cache | None = None
        self._measured, self._failed = set[tuple[str, str]](), set[tuple[str, str]]()
        self._note(record for _, record in read(self.records))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self._opened is not None:
            self._opened.__exit__()

    @property
    def records(self) -> Path:
        """The file of all figures, those of former runs first."""
        return self.store.records

    @property
    def seconds_left(self) -> float:
        """The seconds during which another case may begin."""
        return self.deadline - time.monotonic()

    @cached_property
    def engine(self) -> Engine:
        """The engine, opened on first use, because an open one takes memory of the device."""
        return open_engine(self.setting.engine, 1)

    @property
    def cache(self) -> Cache:
        """The cache for the engine's measurements, opened on first use."""
        if self._opened is None:
            self._opened = Cache.open(self.store.engine_cache)
        return self._opened

    @property
    def bench(self) -> Bench:
        """The engine with its cache, and with the memory that is available now."""
        return Bench(self.engine, self.cache, self.listener, Exhaustive())

    def has(self, bench: str, case: str) -> bool:
        """Return whether a case has been measured, in this run or a former one."""
        return (bench, case) in self._measured

    def measure(self, cases: Iterator[Case]) -> None:
        """Measure the cases that no run has measured, in order, until the time is over.

        A failure becomes a record, and the next case begins. Cases that failed come last, also in later runs.
        If a case ends the process, the next run finds its name in the store and records the failure.

        Raises SystemExit after MOST_FAILURES failures in a row: they have one cause. Failures of programs do
        not count. Raises UnusableDeviceError if the device does not answer after a failure.
        """
        self._note_crash()
        wanted = [case for case in cases if not self.has(case.bench, case.name)]
        failures = 0
        for case in sorted(wanted, key=lambda case: (case.bench, case.name) in self._failed):
            if self.seconds_left <= 0:
                return
            if failures == MOST_FAILURES:
                raise SystemExit(f"{failures} failures in a row")
            failures = 0 if self._measure(case) else failures + 1

    def _measure(self, case: Case) -> bool:
        """Measure one case and keep its records. Return False for a failure in this process.

        The failure of a program, which is a process of its own, returns True.
        """
        self.store.at_work.write_text(json.dumps([case.bench, case.name]), "utf-8")
        why, program = "", False
        try:
            records = list(case.measure())
        except Exception as error:  # any error is a failure of this case only
            program = isinstance(error, ProgramError)
            lines = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {lines[-1]}"
            records = [_failure(case.bench, case.name, why)]
        finally:
            self.store.at_work.unlink()
        self._keep(records)
        if why and not self._device_answers():
            raise UnusableDeviceError(why)
        return program or not why

    def _note_crash(self) -> None:
        if self.store.at_work.exists():
            bench, case = json.loads(self.store.at_work.read_text("utf-8"))
            self.store.at_work.unlink()
            self._keep([_failure(bench, case, "the process ended while it was measured")])

    def _keep(self, records: list[Record]) -> None:
        append(self.records, *records)
        self._note(records)
        for record in records:
            print(record, flush=True)

    def _note(self, records: Iterable[Record]) -> None:
        """Remember (bench, case) of records: of those that are measured, and of failures."""
        for record in records:
            cases = self._failed if record.metric == FAILED else self._measured
            cases.add((record.bench, record.case))

    def _device_answers(self) -> bool:
        if "engine" not in self.__dict__:
            return True
        try:
            return self.engine.available_memory > 0
        except (MucudnnError, RuntimeError):
            return False


def _failure(bench: str, case: str, why: str) -> Record:
    return Record(bench, case, FAILED, None, "", {"why": why})


def record_outcome(path: Path, part: str, seconds: float, why: str) -> None:
    """Record the seconds that a part took, or the reason of its failure if `why` is not empty."""
    append(path, _failure("part", part, why) if why else Record("part", part, "took", seconds, "s"))

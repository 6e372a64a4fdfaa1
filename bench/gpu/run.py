"""One run of one part: its engine, its caches, its time, and the records that are there already."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.gpu.setting import Setting
from bench.record import Record, append, read
from mucudnn._native import Engine
from mucudnn.cache import Cache
from mucudnn.cli.terminal import Terminal
from mucudnn.engines import open_engine
from mucudnn.exchange import format_rows, parse_rows
from mucudnn.listener import Listener

MOST_FAILURES = 5
FAILED = "failed"  # the metric of a record without a value, whose details say why


@dataclass(frozen=True)
class Case:
    """What is measured in one go: its records bear these names."""

    bench: str
    name: str
    measure: Callable[[], Iterable[Record]]


class Run:
    """A results folder, what to measure, and how long. Closed by `with`."""

    def __init__(self, folder: Path, setting: Setting, seconds: float) -> None:
        self.folder, self.setting = folder, setting
        self.deadline = time.monotonic() + seconds
        self.listener: Listener = Terminal()
        self._cache: Cache | None = None
        self._measured = _named(record for _, record in read(self.records))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self._cache is not None:
            with gzip.open(self.measurements, "wt", encoding="utf-8") as file:
                file.writelines(format_rows(self._cache.rows()))
            self._cache.__exit__()

    @property
    def records(self) -> Path:
        """All figures, those of former runs first."""
        return self.folder / "gpu.jsonl"

    @property
    def measurements(self) -> Path:
        """Every algorithm at every size that was measured, as `mucudnn cache export` writes them."""
        return self.folder / "measurements.jsonl.gz"

    @property
    def programs_cache(self) -> Path:
        """What the drop-in measures under programs."""
        return self.folder / "cache" / "programs.sqlite"

    @property
    def seconds_left(self) -> float:
        """Until nothing new is to be begun."""
        return self.deadline - time.monotonic()

    @cached_property
    def engine(self) -> Engine:
        """Opened when it is first needed: it takes memory of the device."""
        return open_engine(self.setting.engine, 1)

    @property
    def cache(self) -> Cache:
        """Of what the engine measures; begins with the measurements that the folder holds."""
        if self._cache is None:
            path = self.folder / "cache" / "engine.sqlite"
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            self._cache = Cache.open(path)
            if new and self.measurements.exists():
                with gzip.open(self.measurements, "rt", encoding="utf-8") as lines:
                    self._cache.merge(parse_rows(lines, self.measurements.name))
        return self._cache

    def has(self, bench: str, case: str) -> bool:
        """Whether a case is measured."""
        return (bench, case) in self._measured

    def measure(self, cases: Iterator[Case]) -> None:
        """Measure the cases that are not there yet, in order, until the time is over.

        A failure becomes a record and stops nothing; the next run tries again. But many in a row are of one
        cause, such as a device that an error has made unusable to the process: then SystemExit is raised.
        """
        failures = 0
        for case in cases:
            if self.seconds_left <= 0:
                return
            if self.has(case.bench, case.name):
                continue
            if failures == MOST_FAILURES:
                raise SystemExit(f"{failures} failures in a row")
            try:
                records = list(case.measure())
                failures = 0
            except Exception as error:  # whatever it is, the others are not concerned
                lines = str(error).strip().splitlines() or [""]
                records = [_failure(case.bench, case.name, f"{type(error).__name__}: {lines[-1]}")]
                failures += 1
            append(self.records, *records)
            self._measured |= _named(records)
            for record in records:
                print(f"{record.bench}: {record.case}: {record.metric} {_shown(record)}", flush=True)


def _named(records: Iterable[Record]) -> set[tuple[str, str]]:
    """Those that were measured."""
    return {(record.bench, record.case) for record in records if record.metric != FAILED}


def _shown(record: Record) -> str:
    if record.value is None:
        return str(record.details.get("why", "not measured"))
    return f"{record.value:.4g} {record.unit}"


def _failure(bench: str, case: str, why: str) -> Record:
    return Record(bench, case, FAILED, None, "", {"why": why})


def record_outcome(path: Path, part: str, seconds: float, why: str) -> None:
    """Of a part as a whole: what it took, or why it failed."""
    append(path, _failure("part", part, why) if why else Record("part", part, "took", seconds, "s"))

"""The files of a results folder: those that are kept, and the caches, which elsewhere are made from them."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path

from mucudnn.costs.cache import Cache
from mucudnn.costs.exchange import format_rows, parse_rows
from mucudnn.costs.journal import journal_of


@dataclass(frozen=True)
class Store:
    """Of one device and library."""

    folder: Path

    @property
    def records(self) -> Path:
        """All figures, as JSON lines."""
        return self.folder / "gpu.jsonl"

    @property
    def measurements(self) -> Path:
        """Every algorithm at every size that was measured, as `mucudnn cache export` writes them."""
        return self.folder / "measurements.jsonl.gz"

    @property
    def journals(self) -> Path:
        """What the drop-in measured under programs, its journals."""
        return self.folder / "journals.tar.gz"

    @property
    def summary(self) -> Path:
        """What the figures come to."""
        return self.folder / "summary.md"

    @property
    def engine_cache(self) -> Path:
        """What the engine measures."""
        return self.folder / "cache" / "engine.sqlite"

    @property
    def at_work(self) -> Path:
        """Names the case that is being measured: where it stays, the process ended in it."""
        return self.folder / "cache" / "at-work.json"

    def programs_cache(self, name: str) -> Path:
        """The cache of programs under the drop-in which have one together; beside it they keep a journal."""
        return self.folder / "cache" / f"programs-{name}.sqlite"

    def make(self) -> None:
        """The folders."""
        self.engine_cache.parent.mkdir(parents=True, exist_ok=True)

    def restore(self) -> None:
        """Into the caches, which stay where they are made, what the folder keeps."""
        self.make()
        if self.measurements.exists():
            lines = gzip.decompress(self.measurements.read_bytes()).decode().splitlines()
            with Cache.open(self.engine_cache) as cache:
                cache.merge(parse_rows(lines, self.measurements.name))
        if self.journals.exists():
            with tarfile.open(self.journals) as kept:
                for member in kept:
                    journal = self.engine_cache.with_name(Path(member.name).name)
                    if not journal.exists() and (file := kept.extractfile(member)) is not None:
                        _replace(journal, file.read())

    def keep(self) -> None:
        """Write what the caches hold beside the figures."""
        if self.engine_cache.exists():
            with Cache.read_only(self.engine_cache) as cache:
                rows = "".join(format_rows(cache.rows())).encode()
            _replace(self.measurements, gzip.compress(rows, mtime=0))
        journals = sorted(self.engine_cache.parent.glob(journal_of(self.programs_cache("*")).name))
        if journals:
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w:gz") as kept:
                for journal in journals:
                    kept.add(journal, journal.name)
            _replace(self.journals, packed.getvalue())


def _replace(path: Path, content: bytes) -> None:
    """Whole or not at all, whenever this is killed."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)

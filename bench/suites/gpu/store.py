"""The files of a results folder: those to keep and to commit, and caches, which can be made from them."""

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
    """The results folder of one device and library."""

    folder: Path

    @property
    def records(self) -> Path:
        """The file of all figures, JSON lines."""
        return self.folder / "gpu.jsonl"

    @property
    def measurements(self) -> Path:
        """The file of the engine's measurements, in the format of `mucudnn cache export`, gzipped."""
        return self.folder / "measurements.jsonl.gz"

    @property
    def journals(self) -> Path:
        """The archive of the journals in which the drop-in keeps its measurements."""
        return self.folder / "journals.tar.gz"

    @property
    def summary(self) -> Path:
        """The path of `summary.md`, the page with the tables of a run."""
        return self.folder / "summary.md"

    @property
    def engine_cache(self) -> Path:
        """The cache for the engine's measurements."""
        return self.folder / "cache" / "engine.sqlite"

    @property
    def at_work(self) -> Path:
        """The file that names the case in progress. If a run finds it, that case ended the last process."""
        return self.folder / "cache" / "at-work.json"

    def programs_cache(self, name: str) -> Path:
        """Return the cache that programs under the drop-in share; the drop-in's journal is beside it."""
        return self.folder / "cache" / f"programs-{name}.sqlite"

    def make(self) -> None:
        """Make the folders."""
        self.engine_cache.parent.mkdir(parents=True, exist_ok=True)

    def restore(self) -> None:
        """Fill the caches from the files that are kept: a folder from another machine has no caches."""
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
        """Write the measurements and the journals of the caches to the files that are kept."""
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
    """Replace a file so that it is never half written, even if this process is killed."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(content)
    os.replace(new, path)

"""The measurements that are shipped with the package, under the user's own.

They are JSON lines as `mucudnn cache export` writes them, so that a change to them can be reviewed like one
of code; an sqlite file could not be. One file holds one machine and is named after it, so nothing is read
but what concerns the machine at hand, and there is no compiled copy that could be out of date.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from mucudnn.costs.exchange import parse_rows
from mucudnn.costs.records import Machine
from mucudnn.costs.schema import Row

SHIPPED = Path(__file__).parent / "data"
_SUFFIX = ".jsonl"


class SystemDatabase:
    """A folder of such files, read when they are asked for."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or SHIPPED
        self._of = lru_cache(maxsize=None)(self._read)

    def rows(self, machine: Machine, problem: str, pass_: str) -> list[Row]:
        """Return the rows of a problem, given as the cache's table has it. Raise MucudnnError if damaged."""
        return self._of(machine).get((problem, pass_), [])

    def names(self) -> list[str]:
        """Return the names of the machines that were measured, as `rows_of` takes them."""
        files = (file.name for file in self._folder.iterdir())
        return sorted(name.removesuffix(_SUFFIX) for name in files if name.endswith(_SUFFIX))

    def rows_of(self, name: str) -> Iterator[Row]:
        """Yield all rows of one machine. Raise MucudnnError if the file is damaged."""
        with (self._folder / f"{name}{_SUFFIX}").open(encoding="utf-8") as lines:
            yield from parse_rows(lines, name)

    def _read(self, machine: Machine) -> dict[tuple[str, str], list[Row]]:
        by_kernel: dict[tuple[str, str], list[Row]] = defaultdict(list)
        file = self._folder / file_name(machine)
        try:
            lines = file.open(encoding="utf-8")
        except FileNotFoundError:
            return {}
        with lines:
            for kind, row in parse_rows(lines, file.name):
                if (row["device"], row["library"], row["threads"]) == machine.identity:
                    by_kernel[row["problem"], row["pass"]].append((kind, row))
        return dict(by_kernel)


def file_name(machine: Machine) -> str:
    """Return `NVIDIA-H200-cuDNN-9.19-1.jsonl`. Machines may share a name: each row names its machine."""
    text = f"{machine.device} {machine.library} {machine.threads}"
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") + _SUFFIX

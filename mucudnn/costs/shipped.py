"""The measurements that are shipped with the package. The user's own take precedence.

They are JSON lines as `mucudnn cache export` writes them, so that changes can be reviewed like code. Each
machine has a file named after it, so that only the measurements of the machine at hand are read.
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
    """A folder of such files, each read when it is first needed."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or SHIPPED
        self._of = lru_cache(maxsize=None)(self._read)

    def rows(self, machine: Machine, problem: str, pass_: str) -> list[Row]:
        """Return the rows of a problem's text in the cache. Raise MucudnnError if the file is damaged."""
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
    """Return a name such as `NVIDIA-H200-cuDNN-9.19-1.jsonl`, which several machines may share."""
    text = f"{machine.device} {machine.library} {machine.threads}"
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") + _SUFFIX

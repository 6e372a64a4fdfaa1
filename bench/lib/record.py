"""The format of all figures: JSON lines that describe the machine, then a record for each figure."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from mucudnn import __version__

RESULTS = Path(__file__).parents[1] / "results"
BUSY = "other programs disturbed too many runs"
Machine = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """One figure: its name (`bench`, `case`, `metric`), its value and its unit.

    A value of None stands for a missing figure. `details` explains the figure by algorithms, sizes, counts
    or the reason for None; a second figure of the same rank is a record of its own.
    """

    bench: str
    case: str
    metric: str
    value: float | None
    unit: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def is_busy(self) -> bool:
        """True if the figure is missing because the machine was busy. A later run can measure it."""
        return self.details.get("why") == BUSY

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:.4g} {self.unit}"
        return f"{self.bench}: {self.case}: {self.metric}: {self.details.get('why', value)}"


def describe_machine(**engine: Any) -> Machine:
    """Return the description of this machine, which readers of its figures need; add `engine` to it."""
    return {
        "kind": "machine",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "mucudnn": __version__,
        "commit": _commit(),
        "processor": _processor(),
        "model": _model(),
        "vectors": _vectors(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "openblas_environment": {k: v for k, v in sorted(os.environ.items()) if k.startswith("OPENBLAS_")},
        **engine,
    }


def machine_name(machine: Machine) -> str:
    """Return a machine's name: figures of two machines with the same name replace each other."""
    model = f" ({machine['model']})" if machine.get("model") else ""
    return f"{machine.get('processor')}{model}, {machine.get('vectors')}, {machine.get('cores')} cores"


def read(path: Path) -> list[tuple[Machine, Record]]:
    """Return the records of a file in order, each with the machine described before it; [] without a file.

    A last line without a newline is ignored, because its writer was killed in the middle.
    """
    machine: Machine = {}
    pairs = []
    whole, _, _ = path.read_text("utf-8").rpartition("\n") if path.exists() else ("", "", "")
    for line in whole.splitlines():
        values = json.loads(line)
        if values.pop("kind") == "machine":
            machine = values
        else:
            pairs.append((machine, Record(**values)))
    return pairs


def read_own(path: Path, machine: Machine) -> list[Record]:
    """Return the records of a file that a machine with this machine's name measured."""
    return [record for other, record in read(path) if machine_name(other) == machine_name(machine)]


def by_machine(pairs: Iterable[tuple[Machine, Record]]) -> list[list[tuple[Machine, Record]]]:
    """Divide what `read` returned into one list for each machine, in the order of their first records."""
    machines: dict[str, list[tuple[Machine, Record]]] = {}
    for machine, record in pairs:
        machines.setdefault(machine_name(machine), []).append((machine, record))
    return list(machines.values())


def put(path: Path, machine: Machine, record: Record) -> None:
    """Write a record, in place of this machine's former one of the same bench, case and metric."""
    mine = machine_name(machine), record.bench, record.case, record.metric
    kept = [
        (former, old)
        for former, old in read(path)
        if (machine_name(former), old.bench, old.case, old.metric) != mine
    ]
    lines: list[Machine | Record] = []
    for described, group in groupby([*kept, (machine, record)], key=itemgetter(0)):
        lines += [{"kind": "machine", **described}, *(item for _, item in group)]
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".new")
    scratch.write_text("".join(map(_line, lines)), "utf-8")
    scratch.replace(path)


def append(path: Path, *lines: Machine | Record) -> None:
    """Append records and descriptions of machines to a file, and remove a last line without a newline.

    Other programs may append to the file at the same time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0, os.SEEK_END)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write("".join(map(_line, lines)).encode())


def _line(item: Machine | Record) -> str:
    values = item if isinstance(item, dict) else {"kind": "record", **asdict(item)}
    return json.dumps(values) + "\n"


def _processor() -> str:
    return _cpuinfo("model name") or platform.processor()


def _model() -> str:
    """Return the numbers of the processor's design. Virtual machines often hide them in its name."""
    family, model = _cpuinfo("cpu family"), _cpuinfo("model\t")
    return f"family {family}, model {model}" if family and model else ""


def _vectors() -> str:
    """Return the widest vector instructions of the processor that the host engine has code for."""
    flags = _cpuinfo("flags").split()
    return "avx512" if "avx512f" in flags else "avx2" if "avx2" in flags else "none"


def _cpuinfo(name: str) -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""


def _commit() -> str:
    """Return the checkout's commit, with `-dirty` if files other than results differ from it; else ""."""
    git = ["git", "-C", str(Path(__file__).parent)]
    named = [*git, "rev-parse", "--short", "HEAD"]
    changed = [*git, "diff", "--quiet", "HEAD", "--", ":(top,exclude)bench/results"]
    try:
        commit = subprocess.run(named, capture_output=True, text=True, check=False).stdout.strip()
        is_dirty = subprocess.run(changed, capture_output=True, check=False).returncode == 1
    except OSError:  # git is not installed
        return ""
    return commit + ("-dirty" if is_dirty else "")

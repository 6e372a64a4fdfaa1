"""Helpers that play scripts in processes, on the host engine alone and under the drop-in in each mode."""

import pickle
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from player import Entry
from programs import HANGS, SHIM, SONAME, environment, preload
from scripts import Step

from mucudnn._native import host_library

CLIENT = Path(__file__).with_name("client_process.py")
NATIVE_TESTS = Path(__file__).parents[1] / "native"
SECONDS_A_CASE = 20  # a case that takes longer counts as hanging


@dataclass(frozen=True)
class Mode:
    """A mode of the drop-in: its name, limit and environment variables."""

    name: str
    limit: int | None = None  # bytes
    settings: dict[str, str] = field(default_factory=dict)

    def variables(self, cache: Path) -> dict[str, str]:
        limit = {} if self.limit is None else {"MUCUDNN_WORKSPACE_LIMIT": str(self.limit)}
        return {
            "LD_PRELOAD": preload(SHIM),
            "MUCUDNN_LIBRARY": "host",
            "MUCUDNN_CACHE": str(cache),
            "MUCUDNN_LOG": "info",
            **limit,
            **self.settings,
        }


@dataclass(frozen=True)
class Crash:
    """A crash or hang in the middle of a script."""

    step: int
    how: str


Trace = list[Entry] | Crash


def play(
    scripts: Sequence[Sequence[Step]], folder: Path, mode: Mode | None = None, cache: Path | None = None
) -> list[Trace]:
    """Play the scripts one after the other in one process. After a crash, go on in another process."""
    folder.mkdir(parents=True, exist_ok=True)
    scripts_file, progress = folder / "scripts.pickle", folder / "progress"
    scripts_file.write_bytes(pickle.dumps([list(script) for script in scripts]))
    variables = {"MUCUDNN_THREADS": "1", "PYTHONPATH": str(NATIVE_TESTS)}
    library = host_library()
    if mode is not None:
        variables.update(mode.variables(cache or folder / "cache.sqlite"))
        library = SONAME
    traces: list[Trace] = []
    while len(traces) < len(scripts):
        progress.write_bytes(struct.pack("qq", len(traces), -1))
        written = folder / f"traces{len(traces)}.pickle"
        written.unlink(missing_ok=True)
        how = _run(
            [sys.executable, CLIENT, library, scripts_file, written, progress, str(len(traces))],
            variables,
            HANGS + SECONDS_A_CASE * 0.05 * len(scripts),
            folder / "stderr",
        )
        if written.exists():
            traces += _read(written)
        if how is None:
            assert len(traces) == len(scripts)
            break
        number, step = struct.unpack("qq", progress.read_bytes())
        assert number == len(traces), f"{how} outside of a script: {(folder / 'stderr').read_text()}"
        traces.append(Crash(step, how))
    return traces


def shuffle_times(journal: Path, to: Path) -> None:
    """Copy the journal with random times, the same in each run, so that any algorithm may be the fastest."""
    kernel, lines = "", []

    def changed(match: re.Match[str]) -> str:
        size, algorithm = match[1], match[2]
        random = Random(f"{kernel} {size} {algorithm}")
        time = 10 ** random.uniform(-3, 1) * random.choice((1, int(size)))
        return f"1*{size}:{algorithm}:{time:.6g}:"

    for line in journal.read_text().splitlines(keepends=True):
        kernel = line if line.startswith("kernel ") else kernel
        lines.append(re.sub(r"1\*(\d+):([^:]+):[^:]+:", changed, line))
    to.write_text("".join(lines))


def count_divided(folder: Path) -> tuple[int, int]:
    """Return how many convolutions the processes of a folder divided, and how many they made."""
    lines = re.findall(r"mucudnn: (\d+) of (\d+) convolutions divided", (folder / "stderr").read_text())
    return sum(int(some) for some, _ in lines), sum(int(all_) for _, all_ in lines)


def _run(
    command: Sequence[str | Path], variables: dict[str, str], seconds: float, errors: Path
) -> str | None:
    """Run a command. Return how the process failed, or None if it succeeded."""
    with errors.open("a") as stderr:
        try:
            done = subprocess.run(
                command, env=environment(**variables), stderr=stderr, timeout=seconds, check=False
            )
        except subprocess.TimeoutExpired:
            return "it hangs"
    if done.returncode < 0:
        return f"it ends by {signal.Signals(-done.returncode).name}"
    return None if done.returncode == 0 else f"it exits with {done.returncode}"


def _read(path: Path) -> list[Trace]:
    traces: list[Trace] = []
    with path.open("rb") as file:
        while True:
            try:
                traces.append(pickle.load(file))
            except (EOFError, pickle.UnpicklingError):
                return traces

"""The gain by division on a GPU, the most informative figures first.

The figures go to the folder `bench/results/DEVICE-LIBRARY/`, one by one as they are measured. A run that is
stopped, or that has no time left, continues when the program is started again. With `--engine host` all of
it runs without a GPU, on small sizes; such times say nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.lib.processes import LAST_SECONDS, end_on_terminate, run_captured, run_visibly
from bench.lib.record import RESULTS
from bench.suites.gpu.part import PARTS, SETTINGS, UNUSABLE
from bench.suites.gpu.run import Store, record_outcome
from bench.suites.gpu.summary import write_summary

MINUTES = 8.0
FOR_THE_LAST = 35.0  # seconds before the end in which nothing begins; in a short run a tenth of its time
OVERTIME = 60.0  # seconds that a part may take beyond its time, to finish the case that it has begun
MOST_TO_OPEN = 120.0  # seconds that opening the device may take
PROCESSES = 4  # processes that one part may use up, if its cases crash them
# This is a process of its own, because a process that has opened a GPU keeps some of its memory, and on some
# machines keeps all other processes out of it.
NAME_DEVICE = (
    "import sys; from mucudnn.measuring.engines import open_engine; engine = open_engine(sys.argv[1], 1); "
    "print(engine.device, engine.library, sep='-')"
)


def parse_parts(text: str) -> list[str]:
    """Return the parts that a comma-separated text names, in the order of PARTS.

    Raises ArgumentTypeError for another name.
    """
    unknown = set(names := text.split(",")) - PARTS.keys()
    if unknown:
        raise argparse.ArgumentTypeError(f"{min(unknown)} is not a part: {', '.join(PARTS)}")
    return [name for name in PARTS if name in names]


def main(words: Sequence[str]) -> None:
    """Measure the parts until the time is over, each in a process of its own; write the summary."""
    parser = argparse.ArgumentParser(prog="python -m bench run gpu", description=__doc__)
    parser.add_argument("--engine", choices=SETTINGS, default="cudnn", help="host is a dry run")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="the time it may take (default: 8)")
    parser.add_argument(
        "--only", type=parse_parts, default=list(PARTS), metavar="PARTS", help=", ".join(PARTS)
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for DEVICE-LIBRARY")
    arguments = parser.parse_args(words)
    end_on_terminate()
    begin = time.monotonic()
    opened = run_captured([sys.executable, "-c", NAME_DEVICE, arguments.engine], MOST_TO_OPEN)
    if opened.returncode:
        reason = opened.stderr.strip().rpartition("\n")[2].partition(": ")[2]  # behind the error's class
        raise SystemExit(reason or f"opening the device ended with {opened.returncode}")
    folder = arguments.results / re.sub(r"[^\w.]+", "-", opened.stdout.strip())
    store = Store(folder.absolute())
    store.restore()

    seconds = arguments.minutes * 60
    end, failed = begin + seconds - min(seconds / 20, LAST_SECONDS), []
    last = begin + seconds - min(seconds / 10, FOR_THE_LAST)
    try:
        for index, part in enumerate(arguments.only):
            share = PARTS[part][1] / sum(PARTS[later][1] for later in arguments.only[index:])
            start = time.monotonic()
            if start >= last:
                failed.append(f"not begun: {', '.join(arguments.only[index:])}")
                break
            why = measure_part(part, arguments.engine, store, start + max(0.0, (last - start) * share), end)
            if why:
                failed.append(f"{part}: {why}")
            record_outcome(store.records, part, time.monotonic() - start, why)
            store.keep()
            write_summary(store)
    except KeyboardInterrupt:
        store.keep()
        write_summary(store)
        raise SystemExit(f"interrupted: what was measured is kept in {store.folder}") from None
    Console(width=110).print(f"{store.summary}", *failed, sep="\n", highlight=False)


def measure_part(part: str, engine: str, store: Store, until: float, end: float) -> str:
    """Measure one part. Return the reason of its failure, or "" for success.

    `until` and `end` are times of the monotonic clock: no case begins after `until`, and the process is ended
    at `end`. If a case crashes the process, another process continues.
    """
    why = ""
    for _ in range(PROCESSES):
        seconds = max(0.0, until - time.monotonic())
        command = [
            sys.executable, "-m", "bench.suites.gpu.part", part,
            "--engine", engine, "--folder", str(store.folder), "--seconds", f"{seconds:.1f}",
        ]  # fmt: skip
        code = run_visibly(command, min(seconds + OVERTIME, max(1.0, end - time.monotonic())))
        if code == 0:
            return ""
        if code is None:
            return "it was stopped, for its time was over"
        why = f"exit code {code}"
        if code > 0 and code != UNUSABLE:
            break
    return why

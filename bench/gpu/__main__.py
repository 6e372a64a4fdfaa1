"""`python -m bench.gpu`: what division gives on a GPU, the most telling first.

Goes to a folder of its own, `bench/results/DEVICE-LIBRARY/`, where what is measured is kept as it is done: a
run that was stopped, or whose time was over, goes on where it was when it is started again. With
`--engine host` everything runs end to end on a machine without a GPU, on small sizes; its times say nothing.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from rich.console import Console

from bench.gpu.part import PARTS, SETTINGS, UNUSABLE
from bench.gpu.processes import LAST_SECONDS, end_on_terminate, finished, watched
from bench.gpu.run import record_outcome
from bench.gpu.store import Store
from bench.gpu.summary import write_summary
from bench.record import RESULTS

MINUTES = 8.0
FOR_THE_LAST = 35.0  # seconds at the end at which nothing is begun, or a tenth of all
OVERTIME = 60.0  # seconds that a part may take beyond its time, for what it has begun
MOST_TO_OPEN = 120.0  # seconds
PROCESSES = 4  # that one part may take, where what it measures ends them


def parts(text: str) -> list[str]:
    """Names with commas between them, in their own order."""
    unknown = set(names := text.split(",")) - PARTS.keys()
    if unknown:
        raise argparse.ArgumentTypeError(f"{min(unknown)} is no part: {', '.join(PARTS)}")
    return [name for name in PARTS if name in names]


def main() -> None:
    """Measure what the time allows, each part in a process of its own; then write the summary."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--engine", choices=SETTINGS, default="cudnn", help="host is a dry run")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="that it may take (default: 8)")
    parser.add_argument("--only", type=parts, default=list(PARTS), metavar="PARTS", help=", ".join(PARTS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results' folder")
    arguments = parser.parse_args()
    end_on_terminate()
    begin = time.monotonic()
    which = finished([sys.executable, "-m", "bench.gpu.which", arguments.engine], MOST_TO_OPEN)
    if which.returncode:
        raise SystemExit(which.stderr.strip() or f"opening the device ended with {which.returncode}")
    store = Store((arguments.results / which.stdout.strip()).absolute())
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
            why = measured(part, arguments.engine, store, start + max(0.0, (last - start) * share), end)
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


def measured(part: str, engine: str, store: Store, until: float, end: float) -> str:
    """Measure until then, in as many processes as it takes. Says why it failed; nothing where it did not."""
    why = ""
    for _ in range(PROCESSES):
        seconds = max(0.0, until - time.monotonic())
        command = [
            sys.executable, "-m", "bench.gpu.part", part,
            "--engine", engine, "--folder", str(store.folder), "--seconds", f"{seconds:.1f}",
        ]  # fmt: skip
        code = watched(command, min(seconds + OVERTIME, max(1.0, end - time.monotonic())))
        if code == 0:
            return ""
        if code is None:
            return "it was stopped, for its time was over"
        why = f"exit code {code}"
        if code > 0 and code != UNUSABLE:
            break
    return why


if __name__ == "__main__":
    main()

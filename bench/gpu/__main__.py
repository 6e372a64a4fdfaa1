"""`python -m bench.gpu`: what division gives on a GPU, the most telling first.

Goes to a folder of its own, `bench/results/DEVICE-LIBRARY/`, where what is measured is kept as it is done: a
run that was stopped, or whose time was over, goes on where it was when it is started again. With
`--engine host` everything runs end to end on a machine without a GPU, on small sizes; its times say nothing.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from bench.gpu.part import PARTS, SETTINGS
from bench.gpu.run import record_outcome
from bench.gpu.summary import write_summary
from bench.record import RESULTS
from mucudnn.engines import open_engine
from mucudnn.errors import MucudnnError

OVERTIME = 120  # seconds that a part may take beyond its time, for what it has begun


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
    parser.add_argument(
        "--minutes", type=float, default=8.0, help="after which nothing is begun (default: 8)"
    )
    parser.add_argument("--only", type=parts, default=list(PARTS), metavar="PARTS", help=", ".join(PARTS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results' folder")
    arguments = parser.parse_args()
    try:
        engine = open_engine(arguments.engine, 1)
    except MucudnnError as error:
        raise SystemExit(str(error)) from None
    folder = arguments.results / re.sub(r"[^\w.]+", "-", f"{engine.device}-{engine.library}")
    del engine
    folder.mkdir(parents=True, exist_ok=True)

    end, failed = time.monotonic() + arguments.minutes * 60, []
    for index, part in enumerate(arguments.only):
        share = PARTS[part][1] / sum(PARTS[later][1] for later in arguments.only[index:])
        seconds = max(0.0, (end - time.monotonic()) * share)
        start = time.monotonic()
        if why := _measure(part, arguments.engine, folder, seconds):
            failed.append(f"{part}: {why}")
        record_outcome(folder / "gpu.jsonl", part, time.monotonic() - start, why)
        write_summary(folder)
    Console(width=110).print(f"{folder / 'summary.md'}", *failed, sep="\n", highlight=False)


def _measure(part: str, engine: str, folder: Path, seconds: float) -> str:
    """Why a part failed; nothing where it did not."""
    command = [
        sys.executable, "-m", "bench.gpu.part", part,
        "--engine", engine, "--folder", str(folder), "--seconds", f"{seconds:.0f}",
    ]  # fmt: skip
    try:
        code = subprocess.run(command, timeout=seconds + OVERTIME, check=False).returncode
    except subprocess.TimeoutExpired:
        return f"it was stopped {OVERTIME} s after its time"
    return f"exit code {code}" if code else ""


if __name__ == "__main__":
    main()

"""`python -m bench.whole_networks`: steps of whole networks, converted, against stock PyTorch.

Each row is a process with an empty cache, and two more for the peaks. A row that the file has is left out,
so the program can be stopped at any time. `--minutes` ends it. `--run 2` measures everything again: the
difference is the noise. `--draw` only draws the picture.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.openblas import OpenBlas, without_openblas_environment
from bench.record import RESULTS, Record, append, describe_machine, read, show
from bench.whole_rows import FIRST, LIMITS, NETWORKS, PEAK, SPEEDUP, Row, rows

FILE = RESULTS / "whole_networks.jsonl"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "whole-networks.svg"
_MOST_SECONDS = 1800.0  # for one process
DRAWN = ("training, N=16, 2 threads", "inference, N=16, 2 threads")  # the settings of the picture


def measure(row: Row, run: int, seconds: float) -> list[Record]:
    """Return the figures of a row; figures of None, with the reason, where a process failed."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MUCUDNN_CACHE": str(Path(folder) / "cache.sqlite")}
        try:
            both = _process(row, "both", environment, seconds)
            peaks = [_process(row, way, environment, seconds)["peak"] for way in ("ours", "stock")]
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
            reason = {"run": run, "reason": said[-1] if said else str(error)[-200:]}
            return [
                Record("whole", str(row), metric, None, "ratio", reason) for metric in (SPEEDUP, FIRST, PEAK)
            ]
    details: dict[str, Any] = {"run": run, **{key: value for key, value in both.items() if key != "speedup"}}
    return [
        Record("whole", str(row), SPEEDUP, both["speedup"], "ratio", details),
        Record("whole", str(row), FIRST, both["first"], "stock steps", {"run": run}),
        Record(
            "whole", str(row), PEAK, peaks[0] / max(peaks[1], 1), "ratio",
            {"run": run, "peak_mib": peaks[0] / 2**20, "stock_peak_mib": peaks[1] / 2**20},
        ),
    ]  # fmt: skip


def _process(row: Row, way: str, environment: dict[str, str], seconds: float) -> dict[str, Any]:
    command = [
        sys.executable, "-m", "bench.network_step", row.network, "--batch", str(row.batch),
        "--limit", row.limit, "--threads", str(row.threads), "--tune", row.tune,
        "--way", way, "--seconds", str(seconds),
        *(["--inference"] if row.inference else []),
    ]  # fmt: skip
    if way != "both":  # see bench.frameworks
        environment = {**environment, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    done = subprocess.run(command, capture_output=True, check=True, env=environment, timeout=_MOST_SECONDS)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _describe() -> dict[str, Any]:
    """Return the machine as the records name it. Listing and drawing do without PyTorch."""
    import torch

    from mucudnn.arrays.devices import device_named

    engine = device_named("cpu").engine
    return describe_machine(
        device=engine.device,
        library=engine.library,
        openblas_kernel=OpenBlas().kernel,
        torch=torch.__version__,
    )


def bars(file: Path = FILE) -> dict[str, dict[str, list[float]]]:
    """Return the speedups within the first limit by setting and network, one of each run."""
    found: dict[str, dict[str, list[float]]] = {setting: {} for setting in DRAWN}
    for _, record in read(file):
        network, _, setting = record.case.removesuffix(f", {LIMITS[0]}").partition(", ")
        if record.metric == SPEEDUP and record.value is not None and setting in found:
            found[setting].setdefault(network, []).append(record.value)
    return found


def draw(path: Path = PICTURE, file: Path = FILE) -> None:
    """Draw the measured speedups: bars from 1 up or down. Thin lines reach from the worst run to the best."""
    import matplotlib
    from matplotlib.figure import Figure

    from bench.picture import BLUE, GREY, ORANGE, STYLE

    found = {setting: speedups for setting, speedups in bars(file).items() if speedups}
    names = [name for name in NETWORKS if any(name in speedups for speedups in found.values())]
    width = 0.8 / max(len(found), 1)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(max(4.5, 0.75 * len(names) + 1.5), 4), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        for number, ((setting, speedups), colour) in enumerate(
            zip(found.items(), (BLUE, ORANGE), strict=False)
        ):
            for place, name in enumerate(names):
                if name not in speedups:
                    continue
                runs, at = speedups[name], place + width * (number - (len(found) - 1) / 2)
                mean = sum(runs) / len(runs)
                label = None if axes.get_legend_handles_labels()[1][number:] else setting
                axes.bar(at, mean - 1, 0.92 * width, bottom=1, color=colour, label=label)
                axes.plot([at, at], [min(runs), max(runs)], color=GREY, linewidth=1)
                end, above = (max(*runs, mean), 1) if mean >= 1 else (min(*runs, mean), -1)
                axes.annotate(
                    f"{mean:.2f}", (at, end), (0, 3 * above), textcoords="offset points", ha="center",
                    va="bottom" if mean >= 1 else "top", fontsize=8,
                )  # fmt: skip
        axes.axhline(1.0, color=GREY, linewidth=1)
        axes.margins(y=0.15)
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.tick_params(axis="x", length=0)
        axes.spines["bottom"].set_visible(False)
        axes.set_ylabel("speed over stock PyTorch")
        if found:
            figure.legend(frameon=False, loc="outside upper left", ncols=2)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type")) if path.suffix == ".svg" else None
        figure.savefig(path, format=path.suffix[1:], transparent=True, metadata=nothing)


def main() -> None:
    """Measure the rows that the file lacks, as long as there is time."""
    without_openblas_environment()
    parser = argparse.ArgumentParser(prog="python -m bench.whole_networks", description=__doc__)
    parser.add_argument("--output", type=Path, default=FILE, help="file for the records")
    parser.add_argument("--only", default="", metavar="TEXT", help="rows whose name contains this text")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="begin no row after these minutes"
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="time for the rounds of a row")
    parser.add_argument("--run", type=int, default=1, help="the number of the run; 2 measures all rows again")
    parser.add_argument(
        "--list", action="store_true", help="show the rows in their order, and measure nothing"
    )
    parser.add_argument("--draw", action="store_true", help="draw the picture, and measure nothing")
    arguments = parser.parse_args()
    if arguments.draw:
        draw(file=arguments.output)
        return
    wanted = [row for row in rows() if arguments.only in str(row)]
    if arguments.list:
        print(*wanted, sep="\n")
        return
    done = {(record.case, record.details.get("run")) for _, record in read(arguments.output)}
    console, end = Console(width=110), time.monotonic() + 60 * arguments.minutes
    machine = _describe()
    has_machine = False
    for row in wanted:
        if (str(row), arguments.run) in done:
            continue
        if time.monotonic() > end:
            break
        records = measure(row, arguments.run, arguments.seconds)
        show(console, records)
        append(arguments.output, *([] if has_machine else [machine]), *records)
        has_machine = True


if __name__ == "__main__":
    main()

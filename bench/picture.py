"""`python -m bench.picture`: time against workspace for AlexNet, drawn from the committed records.

With `--measure` the records are made anew first: at each limit `mucudnn optimize` measures what its cache
lacks, decides, and runs the chosen configurations and the best undivided algorithms whole, in turns.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from bench.openblas import without_openblas_environment
from bench.record import RESULTS, Record, by_machine, describe_machine, read, write

RECORDS = RESULTS / "picture.jsonl"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "workspace.svg"
NETWORK = "alexnet"
LIMITS = (0, 8, 16, 32, 64, 128, 256)  # MiB
UNDIVIDED, DIVIDED = (f"{NETWORK} forward, {kind}, run whole" for kind in ("undivided", "divided"))

# Colours of a middle brightness: the picture has no background, and pages are light or dark.
GREY, BLUE, ORANGE = "#7d8590", "#3b82e0", "#d9822b"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text, in the reader's font
    "svg.hashsalt": "mucudnn",  # the same records give the same file
    "font.family": "sans-serif",
    "font.size": 12,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
}


def measure() -> None:
    """Run AlexNet at each limit, and write the records."""
    machine, records = {}, []
    for limit in LIMITS:
        result = _optimize(limit)
        machine = {name: result[name] for name in ("device", "library", "threads")}
        total, details = result["total"], {"workspace": result["total"]["workspace"]}
        case = f"{limit} MiB"
        records += [
            Record("picture", case, UNDIVIDED, total["undivided_ms"], "ms"),
            Record("picture", case, DIVIDED, total["divided_ms"], "ms", details),
        ]
    write(RECORDS, describe_machine(**machine), records)


def _optimize(limit: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "mucudnn", "optimize", NETWORK, "--workspace", f"{limit}MiB"]
    command += ["--engine", "host", "--threads", "1", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def draw(path: Path) -> None:
    """Write the picture of the machine that was measured last."""
    found = [record for _, record in by_machine(read(RECORDS))[-1]]
    times = {
        metric: [record.value or 0.0 for record in found if record.metric == metric]
        for metric in (UNDIVIDED, DIVIDED)
    }
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 3.6), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        places = range(len(LIMITS))
        for metric, colour, marker, label in (
            (UNDIVIDED, ORANGE, "s", "best undivided algorithm"),
            (DIVIDED, BLUE, "o", "divided by mucudnn"),
        ):
            axes.plot(places, times[metric], color=colour, marker=marker, linewidth=2.2, label=label)
        axes.set_xticks(places, [str(limit) for limit in LIMITS])
        axes.set_xlabel("workspace that each convolution may use, MiB")
        axes.set_ylabel("ms")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color=GREY, alpha=0.3)
        axes.set_title("AlexNet's five convolutions, forward, mini-batch 64, on one CPU thread", fontsize=12)
        axes.legend(frameon=False, loc="lower left")
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", transparent=True, metadata=nothing)


def main() -> None:
    """Measure if `--measure` is given, then draw the picture."""
    parser = argparse.ArgumentParser(prog="python -m bench.picture", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="make the records anew, which takes minutes")
    parser.add_argument(
        "--output", type=Path, default=PICTURE, metavar="FILE", help=f"default: {PICTURE.name}"
    )
    arguments = parser.parse_args()
    if arguments.measure:
        without_openblas_environment()
        measure()
    draw(arguments.output)


if __name__ == "__main__":
    main()

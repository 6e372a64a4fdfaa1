"""The pictures of the documentation, drawn from the committed records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from bench.lib.record import RESULTS, by_machine, read
from bench.suites.networks.rows import LIMIT, NETWORKS, SPEEDUP, parts_of

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DRAWN = ("training, N=16, 2 threads", "inference, N=16, 2 threads")  # the settings of the picture of networks
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


def bars(results: Path = RESULTS) -> dict[str, dict[str, list[float]]]:
    """Return the speedups within the first limit by setting and network, one of each run on each machine."""
    found: dict[str, dict[str, list[float]]] = {setting: {} for setting in DRAWN}
    for _, record in read(results / "networks.jsonl"):
        if record.metric != SPEEDUP or record.value is None:
            continue
        network, setting, limit = parts_of(record.case)
        if setting in found and limit == LIMIT:
            found[setting].setdefault(network, []).append(record.value)
    return found


def draw_networks(path: Path, results: Path = RESULTS) -> None:
    """Draw the means of the measured speedups as bars, from 1 up or down.

    Thin lines reach from the worst run to the best.
    """
    found = {setting: speedups for setting, speedups in bars(results).items() if speedups}
    names = [name for name in NETWORKS if any(name in speedups for speedups in found.values())]
    width = 0.8 / max(len(found), 1)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(max(4.5, 0.75 * len(names) + 1.5), 5), layout="constrained")
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


def draw_workspace(path: Path, results: Path = RESULTS) -> None:
    """Draw time against workspace on the machine that was measured last."""
    records = [(machine, r) for machine, r in read(results / "core.jsonl") if r.bench == "workspace"]
    found = [record for _, record in by_machine(records)[-1]]
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
        figure.savefig(path, format="svg", transparent=True, metadata=nothing)

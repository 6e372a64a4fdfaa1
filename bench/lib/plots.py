"""The pictures of the documentation, drawn from the committed records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.lib.record import RESULTS, by_machine, read
from bench.suites.networks.networks import LIMIT, NETWORKS, parts_of

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
    """Return the speedups within LIMIT by setting and network, one of each run on each machine."""
    drawn: dict[str, dict[str, list[float]]] = {setting: {} for setting in DRAWN}
    for _, record in read(results / "networks.jsonl"):
        if record.bench == "all_networks" and record.value is not None:
            network, setting, limit = parts_of(record.case)
            if setting in drawn and limit == LIMIT:
                drawn[setting].setdefault(network, []).extend(record.details.get("runs", [record.value]))
    return drawn


def draw_networks(path: Path, results: Path = RESULTS) -> None:
    """Draw the means of the measured speedups as bars, from 1 up or down.

    Thin lines reach from the worst run to the best.
    """
    drawn = {setting: speedups for setting, speedups in bars(results).items() if speedups}
    names = [name for name in NETWORKS if any(name in speedups for speedups in drawn.values())]
    width = 0.8 / max(len(drawn), 1)
    with matplotlib.rc_context(STYLE):
        figure, axes = _make_figure(max(4.5, 0.75 * len(names) + 1.5), 5)
        for number, (setting, speedups) in enumerate(drawn.items()):
            for name, runs in speedups.items():
                at = names.index(name) + width * (number - (len(drawn) - 1) / 2)
                mean = sum(runs) / len(runs)
                label = None if axes.get_legend_handles_labels()[1][number:] else setting
                axes.bar(at, mean - 1, 0.92 * width, bottom=1, color=(BLUE, ORANGE)[number], label=label)
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
        if drawn:
            figure.legend(frameon=False, loc="outside upper left", ncols=2)
        _save(figure, path)


def draw_workspace(path: Path, results: Path = RESULTS) -> None:
    """Draw time against workspace on the machine that was measured last."""
    records = [pair for pair in read(results / "core.jsonl") if pair[1].bench == "workspace"]
    last = [record for _, record in by_machine(records)[-1]]
    with matplotlib.rc_context(STYLE):
        figure, axes = _make_figure(7.6, 3.6)
        for metric, colour, marker, label in (
            (UNDIVIDED, ORANGE, "s", "best undivided algorithm"),
            (DIVIDED, BLUE, "o", "divided by mucudnn"),
        ):
            times = [record.value or 0.0 for record in last if record.metric == metric]
            axes.plot(range(len(LIMITS)), times, color=colour, marker=marker, linewidth=2.2, label=label)
        axes.set_xticks(range(len(LIMITS)), [str(limit) for limit in LIMITS])
        axes.set_xlabel("workspace that each convolution may use, MiB")
        axes.set_ylabel("ms")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", color=GREY, alpha=0.3)
        axes.set_title("AlexNet's five convolutions, forward, mini-batch 64, on one CPU thread", fontsize=12)
        axes.legend(frameon=False, loc="lower left")
        _save(figure, path)


def _make_figure(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    for part in (figure, axes):
        part.patch.set_alpha(0)
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(path, format="svg", transparent=True, metadata=nothing)

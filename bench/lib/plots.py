"""The pictures of the documentation, drawn from the committed records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from bench.lib.record import RESULTS, Machine, Record, by_machine, machine_name, read
from bench.suites.networks.networks import LIMIT, NETWORKS, parts_of

IMAGES = Path(__file__).parents[2] / "docs" / "images"
DRAWN = ("training, N=16, 2 threads", "inference, N=16, 2 threads")  # the settings of the picture of networks
NETWORK = "alexnet"
LIMITS = (0, 8, 16, 32, 64, 128, 256)  # MiB
UNDIVIDED, DIVIDED = (f"{NETWORK} forward, {kind}, run whole" for kind in ("undivided", "divided"))

# Colours of a middle brightness: the picture has no background, and pages are light or dark.
GREY, BLUE, ORANGE = "#7d8590", "#3b82e0", "#d9822b"
COLOURS = (BLUE, ORANGE)  # a machine has one of them
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


@dataclass(frozen=True)
class Bar:
    """The speedup of a network, and the range of its measurements."""

    value: float
    least: float
    most: float


def bars(results: Path = RESULTS) -> dict[str, dict[str, dict[str, Bar]]]:
    """Return the newest speedups within LIMIT by setting, machine and network.

    The programs `networks` and `all_networks` measure the same rows, so the later of both counts.
    """
    drawn: dict[str, dict[str, dict[str, Bar]]] = {setting: {} for setting in DRAWN}
    pairs = read(results / "networks.jsonl")
    for machine, record in sorted(pairs, key=lambda pair: str(pair[0]["date"])):
        if record.bench in ("networks", "all_networks") and record.value is not None:
            network, setting, limit = parts_of(record.case)
            if setting in drawn and limit == LIMIT:
                of_machine = drawn[setting].setdefault(_label(machine), {})
                of_machine[network] = Bar(record.value, *_range(record, record.value))
    return drawn


def _label(machine: Machine) -> str:
    """Return a short name of a machine."""
    model = machine.get("model")
    return f"{machine['processor']}, {model}" if model else machine_name(machine)


def _range(record: Record, value: float) -> tuple[float, float]:
    """Return the confidence interval of a speedup, or else its smallest and largest run."""
    values = [value, *record.details.get("interval", record.details.get("runs", ()))]
    return min(values), max(values)


def draw_networks(path: Path, results: Path = RESULTS) -> None:
    """Draw the speedups as horizontal bars from 1, training beside inference, a colour for each machine.

    Thin lines show the range of the measurements. The network that training gains most for comes first.
    """
    drawn = bars(results)
    machines = sorted({machine for measured in drawn.values() for machine in measured})[: len(COLOURS)]

    def gain(name: str) -> list[float]:
        return [
            max(
                (measured[machine][name].value for machine in measured if name in measured[machine]),
                default=0,
            )
            for measured in drawn.values()
        ]

    names = sorted((name for name in NETWORKS if any(gain(name))), key=gain)
    thickness = 0.8 / max(len(machines), 1)
    with matplotlib.rc_context(STYLE):
        figure, (first, second) = _make_figures(9, 0.42 * len(names) + 1.6)
        for axes, (setting, measured) in zip((first, second), drawn.items(), strict=True):
            axes.set_title(setting, fontsize=12, loc="left")
            for number, machine in enumerate(machines):
                for name, bar in measured.get(machine, {}).items():
                    at = names.index(name) - thickness * (number - (len(machines) - 1) / 2)
                    colour = COLOURS[number]
                    axes.barh(at, bar.value - 1, 0.86 * thickness, left=1, color=colour)
                    axes.plot([bar.least, bar.most], [at, at], color=GREY, linewidth=1)
                    axes.annotate(
                        f"{bar.value:.2f}", (max(bar.most, 1), at), (3, 0), textcoords="offset points",
                        va="center_baseline", fontsize=8,
                    )  # fmt: skip
            axes.axvline(1.0, color=GREY, linewidth=1)
            axes.margins(x=0.12, y=0.01)
            axes.tick_params(axis="y", length=0)
            axes.spines["left"].set_visible(False)
            axes.set_xlabel("speed over stock PyTorch")
        first.set_yticks(range(len(names)), names)
        second.tick_params(axis="y", labelleft=False)
        handles = [Patch(color=colour) for _, colour in zip(machines, COLOURS, strict=False)]
        if handles:
            figure.legend(handles, machines, frameon=False, loc="outside upper left", ncols=2)
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


def _make_figures(width: float, height: float) -> tuple[Figure, tuple[Axes, Axes]]:
    """Return a figure of two parts side by side with the same scales."""
    figure, first = _make_figure(width, height)
    first.remove()
    first, second = figure.subplots(1, 2, sharex=True, sharey=True)
    for part in (first, second):
        part.patch.set_alpha(0)
    return figure, (first, second)


def _save(figure: Figure, path: Path) -> None:
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(path, format="svg", transparent=True, metadata=nothing)

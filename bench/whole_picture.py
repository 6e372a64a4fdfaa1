"""The picture of the whole-network table: the speedups of each network in two settings."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from bench.picture import BLUE, GREY, ORANGE, STYLE
from bench.record import RESULTS, read
from bench.whole_rows import LIMITS, NETWORKS, SPEEDUP, parts_of

FILE = RESULTS / "whole_networks.jsonl"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "whole-networks.svg"
DRAWN = ("training, N=16, 2 threads", "inference, N=16, 2 threads")  # the settings of the picture


def bars(file: Path = FILE) -> dict[str, dict[str, list[float]]]:
    """Return the speedups within the first limit by setting and network, one of each run on each machine."""
    found: dict[str, dict[str, list[float]]] = {setting: {} for setting in DRAWN}
    for _, record in read(file):
        network, setting, way = parts_of(record.case)
        if record.metric == SPEEDUP and record.value is not None and setting in found and way == LIMITS[0]:
            found[setting].setdefault(network, []).append(record.value)
    return found


def draw(path: Path = PICTURE, file: Path = FILE) -> None:
    """Draw the means of the measured speedups as bars, from 1 up or down.

    Thin lines reach from the worst run to the best.
    """
    found = {setting: speedups for setting, speedups in bars(file).items() if speedups}
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

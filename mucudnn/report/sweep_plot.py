"""The plot of a sweep."""

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mucudnn.plans.sweep import Sweep
from mucudnn.report.figure import LIGHT, add_title, save_figure, style

_WIDTH, _HEIGHT, _COLUMNS = 420, 260, 3  # pixels of one kernel's plot, and the most plots side by side


def write_sweeps(sweeps: Mapping[str, Sweep], path: Path) -> None:
    """Draw the sweeps, keyed by their titles, side by side into one file. Raises MucudnnError."""
    columns = min(_COLUMNS, len(sweeps))
    rows = -(-len(sweeps) // columns)
    with style():
        figure = Figure(figsize=(columns * _WIDTH / 72, rows * _HEIGHT / 72), dpi=72, layout="constrained")
        for number, (title, sweep) in enumerate(sweeps.items(), 1):
            _draw(figure.add_subplot(rows, columns, number), title, sweep)
        save_figure(figure, path)


def _draw(axes: Axes, title: str, sweep: Sweep) -> None:
    """Draw the time of a sample against the mini-batch; a line has a gap where nothing fits."""
    sizes = [point.mini_batch for point in sweep.points]
    undivided = [point.per_sample for point in sweep.points]
    divided = [point.divided_per_sample for point in sweep.points]
    gap = float("nan")  # matplotlib draws nothing at such a point
    for times, line, role in ((undivided, "s--", "undivided"), (divided, "o-", "divided")):
        drawn = [gap if time is None else time for time in times]
        axes.plot(sizes, drawn, line, color=LIGHT[role], markersize=3, label=role)
    cliffs = {cliff.point.mini_batch: cliff.point.per_sample for cliff in sweep.cliffs}
    for number, (size, per_sample) in enumerate(cliffs.items()):
        axes.axvline(size, color=LIGHT["chosen"], linewidth=1, label="" if number else "cliff")
        if per_sample is not None:
            axes.plot([size], [per_sample], "D", color=LIGHT["chosen"], markersize=6)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("mini-batch")
    axes.set_ylabel("ms per sample")
    add_title(axes, title)
    axes.legend(fontsize=8)

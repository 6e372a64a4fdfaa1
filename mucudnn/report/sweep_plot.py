"""The plot of a sweep."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mucudnn.plans.sweep import Sweep
from mucudnn.report.figure import LIGHT, save_figure, style

_WIDTH, _HEIGHT, _COLUMNS = 420, 260, 3  # pixels of one kernel's plot, and how many stand side by side


def write_sweeps(sweeps: Mapping[str, Sweep], path: Path) -> None:
    """One plot for each title, all in a file. Raises MucudnnError."""
    columns = min(_COLUMNS, len(sweeps))
    rows = -(-len(sweeps) // columns)
    with style():
        figure = Figure(figsize=(columns * _WIDTH / 72, rows * _HEIGHT / 72), dpi=72, layout="constrained")
        for number, (title, sweep) in enumerate(sweeps.items(), 1):
            _draw(figure.add_subplot(rows, columns, number), title, sweep)
        save_figure(figure, path)


def _draw(axes: Axes, title: str, sweep: Sweep) -> None:
    """Time of a sample against the mini-batch; where nothing fits, a line ends."""
    sizes = [point.mini_batch for point in sweep.points]
    undivided = [point.per_sample for point in sweep.points]
    divided = [point.divided_per_sample for point in sweep.points]
    axes.plot(sizes, _drawn(undivided), "s--", color=LIGHT["undivided"], markersize=3, label="undivided")
    axes.plot(sizes, _drawn(divided), "o-", color=LIGHT["divided"], markersize=3, label="divided")
    cliffs = {cliff.point.mini_batch: cliff.point.per_sample for cliff in sweep.cliffs}
    for number, (size, per_sample) in enumerate(cliffs.items()):
        axes.axvline(size, color=LIGHT["chosen"], linewidth=1, label="" if number else "cliff")
        if per_sample is not None:
            axes.plot([size], [per_sample], "D", color=LIGHT["chosen"], markersize=6)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("mini-batch")
    axes.set_ylabel("ms per sample")
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(fontsize=8)


def _drawn(times: Sequence[float | None]) -> list[float]:
    return [float("nan") if time is None else time for time in times]

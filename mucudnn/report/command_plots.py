"""The plot of `mucudnn parallel project`."""

from collections.abc import Sequence
from pathlib import Path

from mucudnn.report.figure import LIGHT, new_figure, save, style
from mucudnn.solver.devices.projection import Strategy


def write_projection(
    pairs: Sequence[tuple[Strategy | None, Strategy | None]], title: str, path: Path
) -> None:
    """Draw the speed over one device against the devices. Raises MucudnnError."""
    with style():
        figure = new_figure(520, 340, layout="constrained")
        axes = figure.add_subplot()
        for strategies, line, role, label in zip(
            zip(*pairs, strict=True), ("s--", "o-"), ("undivided", "divided"), ("data parallel", "hybrid"),
            strict=True,
        ):  # fmt: skip
            drawn = [(strategy.devices, strategy.speedup) for strategy in strategies if strategy]
            axes.plot(*zip(*drawn, strict=True), line, color=LIGHT[role], markersize=4, label=label)
        counts = sorted({strategy.devices for pair in pairs for strategy in pair if strategy})
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("devices")
        axes.set_ylabel("training's speed over one device")
        save(figure, path, title)

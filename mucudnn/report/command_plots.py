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
        for line, role, label, which in (
            ("s--", "undivided", "data parallel", 0),
            ("o-", "divided", "hybrid", 1),
        ):
            strategies = [pair[which] for pair in pairs]
            drawn = [s for s in strategies if s is not None]
            axes.plot(
                [s.devices for s in drawn], [s.speedup for s in drawn], line, color=LIGHT[role], markersize=4,
                label=label,
            )  # fmt: skip
        counts = [(alone or hybrid).devices for alone, hybrid in pairs if alone or hybrid]  # type: ignore[union-attr]
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.set_xlabel("devices")
        axes.set_ylabel("training's speed over one device")
        save(figure, path, title)

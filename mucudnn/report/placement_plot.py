"""The plot of a placement: the operations of each device over time."""

from pathlib import Path

from matplotlib.figure import Figure

from mucudnn.plans.devices.placing import PlacedNetwork
from mucudnn.report.figure import LIGHT, add_title, save_figure, style

_WIDTH, _ROW = 720, 60  # pixels


def write_placement(placed: PlacedNetwork, devices: int, title: str, path: Path) -> None:
    """Draw when each device runs which operation. Raises MucudnnError."""
    placement = placed.placement
    with style():
        height = (devices + 2) * _ROW
        figure = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72, layout="constrained")
        axes = figure.add_subplot()
        for number in range(devices):
            bars = [
                (start, operation.time_ms)
                for start, operation, device in zip(
                    placement.starts_ms, placed.operations, placement.devices, strict=True
                )
                if device == number
            ]
            axes.broken_barh(
                bars, (number - 0.35, 0.7), facecolor=LIGHT["divided"], edgecolor="white", linewidth=0.4
            )
        axes.axvline(placed.one_device_ms, color=LIGHT["undivided"], linestyle="--")
        axes.text(placed.one_device_ms, -0.45, "one device ", ha="right", va="top", fontsize=8)
        axes.set_xlim(left=0)
        axes.set_ylim(devices - 0.5, -0.5)
        axes.set_yticks(range(devices), [f"device {number}" for number in range(devices)])
        axes.set_xlabel("ms")
        add_title(axes, title)
        save_figure(figure, path)

"""The plots of a report."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mucudnn.report.curves import CurvePoint
from mucudnn.report.figure import LIGHT, SizeScale, new_axes
from mucudnn.report.gather import KernelReport, Report
from mucudnn.sizes import format_size
from mucudnn.solver import Configuration


def kernel_scale(report: Report) -> SizeScale:
    """Return one axis of bytes for the plots of all kernels, which makes them comparable."""
    return SizeScale(
        c.workspace for k in report.kernels for c in (*k.decision.desirable, k.decision.best, *k.undivided)
    )


def kernel_plot(kernel: KernelReport, scale: SizeScale) -> Figure:
    """Draw the desirable set of one kernel as steps, its choice, and its undivided algorithms."""
    figure, axes = new_axes(300, 190, left=44)
    scale.apply(axes, ticks=4)
    chosen = kernel.decision.best
    for points, role, marker, line, fill in (
        (kernel.undivided, "undivided", "s", (0, (4, 2)), "none"),
        (kernel.decision.desirable, "divided", "o", "solid", LIGHT["divided"]),
    ):
        _draw_steps(axes, points, scale, color=LIGHT[role], linewidth=1.5, linestyle=line)
        axes.plot(
            [point.workspace for point in points], [point.time_ms for point in points], marker,
            color=LIGHT[role], markersize=4, markerfacecolor=fill, clip_on=False,
        )  # fmt: skip
    axes.plot(
        [chosen.workspace], [chosen.time_ms], "D", color=LIGHT["chosen"], markersize=8, zorder=4,
        clip_on=False,
    )  # fmt: skip
    axes.set_ylim(0, 1.08 * max(c.time_ms for c in (*kernel.decision.desirable, *kernel.undivided)))
    axes.set_xlabel("workspace")
    axes.set_ylabel("ms")
    return figure


def network_plot(report: Report) -> Figure:
    """Draw the network's time against workspace: three curves, and a line at the limit.

    Workspace is that of all kernels together if they have one total, and else the average of a kernel.
    """
    figure, axes = new_axes(720, 330, left=58, top=20)
    is_total = report.result.limits.total is not None
    share = 1 if is_total else sum(kernel.kernel.count for kernel in report.kernels)
    curves = [
        [replace(point, workspace=point.workspace // share) for point in curve.points]
        for curve in (report.undivided, report.even, report.divided)
    ]
    points = [point for curve in curves for point in curve]
    present = [] if report.present is None else [report.present // share]
    scale = SizeScale([*(point.workspace for point in points), *present])
    scale.apply(axes, ticks=8)
    styles = ("undivided", (0, (1, 1.5))), ("even", (0, (5, 2))), ("divided", "solid")
    for curve, (role, line) in zip(curves, styles, strict=True):
        _draw_steps(axes, curve, scale, color=LIGHT[role], linestyle=line, linewidth=2)
    for total in present:
        axes.axvline(total, color=LIGHT["chosen"], linewidth=1.2)
        place = axes.get_xaxis_transform()
        axes.annotate(
            f"limit {format_size(total)}", (total, 1), xycoords=place, xytext=(3, 4), ha="right",
            textcoords="offset points", color=LIGHT["chosen"],
        )  # fmt: skip
    axes.set_ylim(0, 1.05 * max(point.time_ms for point in points))
    axes.set_xlabel(
        "workspace of all kernels together" if is_total else "workspace of each kernel, on average"
    )
    axes.set_ylabel("ms")
    return figure


def _draw_steps(
    axes: Axes, points: Sequence[Configuration | CurvePoint], scale: SizeScale, **line: Any
) -> None:
    """Draw each point's time up to the next point's workspace; the last step reaches the end of the axis."""
    corners = [(p.workspace, p.time_ms) for p in points] + [(scale.end, p.time_ms) for p in points[-1:]]
    axes.step([x for x, _ in corners], [y for _, y in corners], where="post", **line)

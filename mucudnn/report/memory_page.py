"""The page of a memory plan: memory against time, the figures, the tensors and the convolutions."""

from bisect import bisect_right
from collections import Counter

import numpy as np
from matplotlib.figure import Figure

from mucudnn.input import AnyPath, path_of
from mucudnn.output.files import write_lines
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.report.figure import LIGHT, MEMORY_PALETTE, hover, inline_svg, new_figure, style
from mucudnn.report.memory_curve import KINDS, MemoryCurve, stack_memory
from mucudnn.report.templates import render_page
from mucudnn.sizes import format_size
from mucudnn.solver.memory.timeline import Timeline

_GIB = 2**30


def write_page(plan: MemoryPlan, path: AnyPath, *, recorded: Timeline | None = None) -> None:
    """Write the page of a plan to a file, whole or not at all.

    Args:
        plan: the plan.
        path: the file, which is replaced.
        recorded: what `mucudnn.torch.record_timeline` recorded, drawn as a line over the plan's memory.

    Raises MucudnnError.
    """
    write_lines(path_of(path, "page"), [render(plan, recorded)], "the page")


def render(plan: MemoryPlan, recorded: Timeline | None) -> str:
    """Return the page as HTML text, without scripts or references to other files."""
    timeline = plan.simulate()
    curve = stack_memory(plan, timeline)
    peak_step = bisect_right(timeline.starts_ms, curve.moments[curve.peak]) - 1
    label = (
        f"Memory against time: the peak of {format_size(timeline.peak)} is in step "
        f"{plan.steps[peak_step].name}, {format_size(plan.memory)} are allowed."
    )
    with style():
        return render_page(
            "memory.html.j2",
            MEMORY_PALETTE,
            plan=plan,
            memory=inline_svg(memory_plot(plan, timeline, curve, recorded), "memory", label),
            recorded=recorded,
            kinds=KINDS,
            peak_step=plan.steps[peak_step].name,
            tensors=sorted(plan.tensors, key=lambda tensor: -tensor.bytes),
            kernels=Counter((k.kernel.pass_, k.step, k.chosen) for k in plan.kernels),
        )


def memory_plot(
    plan: MemoryPlan, timeline: Timeline, curve: MemoryCurve, recorded: Timeline | None
) -> Figure:
    """Draw the bytes of each kind against time, with the limit and the peak, and the copies below them.

    The line of a recorded step begins with it, and is as long as it took.
    """
    width, height, left, lanes = 720, 380, 58, 46
    figure = new_figure(width, height)
    span = 1 - (left + 12) / width
    axes = figure.add_axes((left / width, (lanes + 44) / height, span, 1 - (lanes + 66) / height))
    copies = figure.add_axes((left / width, 40 / height, span, (lanes - 8) / height), sharex=axes)
    unit, per_ms = ("seconds", 1e-3) if timeline.time_ms >= 1000 else ("ms", 1.0)
    moments = [moment * per_ms for moment in curve.moments]
    base = np.zeros(len(moments))
    for kind, layer in curve.layers.items():
        top = base + layer / _GIB
        axes.fill_between(moments, base, top, step="post", color=LIGHT[KINDS[kind][1]], linewidth=0)
        base = top
    for step, begin, end in zip(plan.steps, timeline.starts_ms, timeline.ends_ms, strict=True):
        size = format_size(curve.total(bisect_right(curve.moments, begin) - 1))
        # Matplotlib would draw nothing, and nothing to point at, for alpha=0.
        area = axes.axvspan(begin * per_ms, end * per_ms, alpha=0.01, linewidth=0)
        hover(area, f"{step.name}: {size} in memory")
    longest, highest = moments[-1], timeline.peak / _GIB
    if recorded is not None and recorded.memory:
        line = [*recorded.memory, (recorded.time_ms, recorded.memory[-1][1])]
        times, sizes = [moment * per_ms for moment, _ in line], [size / _GIB for _, size in line]
        axes.step(times, sizes, where="post", color=LIGHT["ink"], linewidth=1)
        longest, highest = max(longest, times[-1]), max(highest, *sizes)
    limit, peak = plan.memory / _GIB, timeline.peak / _GIB
    at = moments[curve.peak]
    if limit < 1.5 * peak:
        axes.axhline(limit, color=LIGHT["ink"], linewidth=1, linestyle=(0, (5, 3)))
        axes.annotate(
            f"allowed {format_size(plan.memory)}", (0, limit), xytext=(2, 3), color=LIGHT["ink"],
            xycoords=("axes fraction", "data"), textcoords="offset points",
        )  # fmt: skip
    axes.plot([at], [peak], "v", color=LIGHT["chosen"], markersize=8, clip_on=False)
    is_right = at > moments[-1] / 2
    axes.annotate(
        f"peak {format_size(timeline.peak)}", (at, peak), xytext=(-8 if is_right else 8, 20),
        textcoords="offset points", ha="right" if is_right else "left", color=LIGHT["chosen"],
    )  # fmt: skip
    axes.set_xlim(0, longest or 1)
    axes.set_ylim(0, 1.2 * max(highest, limit if limit < 1.5 * peak else 0))
    axes.set_ylabel("GiB")
    axes.tick_params(labelbottom=False)
    for row, direction in enumerate(("in", "out")):
        bars = [
            (copy.start_ms * per_ms, (copy.end_ms - copy.start_ms) * per_ms)
            for copy in timeline.copies
            if copy.direction == direction
        ]
        copies.broken_barh(bars, (row + 0.15, 0.7), color=LIGHT["divided"], linewidth=0)
    copies.set_ylim(0, 2)
    copies.set_yticks([0.5, 1.5], ["in", "out"])
    copies.set_ylabel("copies")
    copies.grid(visible=False)
    copies.set_xlabel(unit)
    return figure

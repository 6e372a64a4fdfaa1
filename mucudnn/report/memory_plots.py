"""Two plots of the page of a memory plan: the lives of its tensors, and what less memory costs."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from mucudnn.output.text import milliseconds
from mucudnn.plans.memory.parts import PlannedTensor
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.report.figure import LIGHT, hover, new_axes
from mucudnn.sizes import format_size
from mucudnn.solver.memory.timeline import Timeline

CHOICES = {"keep": "undivided", "offload": "divided", "recompute": "even"}
"""The role of each choice's colour."""
SHOWN = 40  # tensors, because more rows would be too thin to point at
_ROW = 9  # pixels
_GIB = 2**30


@dataclass(frozen=True)
class Life:
    """A saved tensor, with the milliseconds during which it is on the device and those while it is away."""

    tensor: PlannedTensor
    present: tuple[tuple[float, float], ...]
    away: tuple[float, float] | None

    def __str__(self) -> str:
        text = f"{self.tensor.name}: {format_size(self.tensor.bytes)}, {self.tensor.choice}"
        if self.away is None:
            return text
        left, back = map(milliseconds, self.away)
        return f"{text}, away from {left} to {back} ms"


def find_lives(plan: MemoryPlan, timeline: Timeline) -> list[Life]:
    """Return the lives of the largest tensors, in the order in which they are written."""
    largest = sorted((tensor for tensor in plan.tensors if tensor.saved.bytes), key=lambda t: -t.bytes)[
        :SHOWN
    ]
    return [_find_life(tensor, timeline) for tensor in sorted(largest, key=lambda t: t.saved.produced_at)]


def _find_life(tensor: PlannedTensor, timeline: Timeline) -> Life:
    saved = tensor.saved
    begin, end = timeline.starts_ms[saved.produced_at], timeline.ends_ms[saved.last_use]
    if tensor.choice == "keep":
        return Life(tensor, ((begin, end),), None)
    left, back = timeline.ends_ms[saved.last_forward_use], timeline.starts_ms[saved.first_backward_use]
    if tensor.choice == "offload":
        copies = [copy for copy in timeline.copies if copy.tensor == tensor.order]
        left = max(left, *(copy.end_ms for copy in copies if copy.direction == "out"))
        back = min(copy.start_ms for copy in copies if copy.direction == "in")
    return Life(tensor, ((begin, left), (back, end)), (left, back))


def lives_plot(lives: Sequence[Life], timeline: Timeline, *, wide: bool) -> Figure:
    """Draw a row for each tensor: thick while it is on the device, thin while it is away."""
    figure, axes = new_axes(720 if wide else 340, _ROW * max(len(lives), 4) + 52, 58)
    unit, per_ms = ("seconds", 1e-3) if timeline.time_ms >= 1000 else ("ms", 1.0)
    for row, life in enumerate(lives):
        colour = LIGHT[CHOICES[life.tensor.choice]]
        bars = [(begin * per_ms, (end - begin) * per_ms) for begin, end in life.present]
        hover(axes.broken_barh(bars, (row + 0.1, 0.8), color=colour, linewidth=0), str(life))
        if life.away is not None:
            left, back = (moment * per_ms for moment in life.away)
            hover(axes.broken_barh([(left, back - left)], (row + 0.4, 0.2), color=colour), str(life))
    axes.set_xlim(0, timeline.time_ms * per_ms or 1)
    axes.set_ylim(max(len(lives), 1), 0)
    axes.set_yticks([])
    axes.set_ylabel("tensors")
    axes.grid(visible=False)
    axes.set_xlabel(unit)
    return figure


def budgets_plot(plans: Sequence[MemoryPlan], plan: MemoryPlan, *, wide: bool) -> Figure:
    """Draw the time of plans for several budgets, relative to no limit, and mark one plan."""
    figure, axes = new_axes(720 if wide else 340, 260, 58)
    drawn = sorted({(each.memory, each.time_ms) for each in plans})
    memory = [size / _GIB for size, _ in drawn]
    slowdowns = [time_ms / plan.unlimited_ms for _, time_ms in drawn]
    axes.plot(memory, slowdowns, "-", color=LIGHT["divided"], linewidth=1.5)
    for size, slowdown, (whole, _) in zip(memory, slowdowns, drawn, strict=True):
        (point,) = axes.plot([size], [slowdown], "o", color=LIGHT["divided"], markersize=5)
        hover(point, f"{format_size(whole)}: {slowdown:.2f} of the time without a limit")
    slowdown = plan.time_ms / plan.unlimited_ms
    limit = min(plan.memory / _GIB, memory[-1])
    (point,) = axes.plot([limit], [slowdown], "v", color=LIGHT["chosen"], markersize=8)
    hover(point, f"this plan: {format_size(plan.memory)}, {slowdown:.2f} of the time without a limit")
    axes.annotate(
        "this plan", (limit, slowdown), xytext=(0, 9), textcoords="offset points", ha="center",
        color=LIGHT["chosen"],
    )  # fmt: skip
    axes.set_ylim(0.98 * min(1.0, *slowdowns), 1.08 * max(*slowdowns, slowdown))
    axes.set_xlabel("GiB of memory")
    axes.set_ylabel("time over no limit")
    return figure

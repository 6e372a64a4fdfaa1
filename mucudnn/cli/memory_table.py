"""The table that `mucudnn memory` prints."""

from collections import defaultdict

from mucudnn.cli.terminal import show, table
from mucudnn.output.text import milliseconds
from mucudnn.plans.memory.parts import PlannedTensor
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.plan import PROMISE
from mucudnn.sizes import format_size

_SHOWN = 8  # the most names listed for a choice


def show_plan(plan: MemoryPlan) -> None:
    """Print the figures of a plan, and the tensors by their choice."""
    figures = table("memory", ">")
    for name, size in (
        ("allowed", plan.memory),
        ("floor", plan.floor),
        ("peak", plan.peak),
        ("average", round(plan.average)),
        ("host memory", plan.host_bytes),
    ):
        figures.add_row(name, format_size(size))
    figures.add_section()
    slower = plan.time_ms / plan.unlimited_ms - 1 if plan.unlimited_ms else 0.0
    slower = round(slower, 6) + 0.0  # sums of equal times may differ in the last bit
    figures.add_row("training step", f"{milliseconds(plan.time_ms)} ms")
    figures.add_row("without a limit, undivided", f"{milliseconds(plan.unlimited_ms)} ms")
    figures.add_row("difference", f"{slower:+.1%}")
    figures.add_row("waits for copies", f"{milliseconds(plan.exposed_ms)} ms")
    sources = ", ".join(f"{name} {source}" for name, source in plan.sources.items() if name != "device")
    head = f"{plan.network}, mini-batch {plan.batch}, on {plan.device}, policy {plan.policy} ({sources})"
    head += f", {plan.header[PROMISE]}" if PROMISE in plan.header else ""
    show(head, figures, _list_choices(plan), _describe_kernels(plan))
    if plan.bound_ms:
        show(f"no plan takes less than {milliseconds(plan.bound_ms)} ms, {plan.gap:.1%} less than this one")
    if plan.is_cut:
        show("the planner ran out of the time that --seconds gave it, and another run may plan differently")


def _list_choices(plan: MemoryPlan) -> str:
    chosen: dict[str, list[PlannedTensor]] = defaultdict(list)
    for tensor in plan.tensors:
        chosen[tensor.choice].append(tensor)
    lines = []
    for choice in ("keep", "offload", "recompute"):
        tensors = sorted(chosen[choice], key=lambda tensor: -tensor.bytes)
        names = ", ".join(tensor.name for tensor in tensors[:_SHOWN])
        more = f" and {len(tensors) - _SHOWN} more" if len(tensors) > _SHOWN else ""
        total = format_size(sum(tensor.bytes for tensor in tensors))
        listed = "" if choice == "keep" or not tensors else f": {names}{more}"
        lines.append(f"{choice}: {len(tensors)} of {len(plan.tensors)} saved tensors, {total}{listed}")
    return "\n".join(lines)


def _describe_kernels(plan: MemoryPlan) -> str:
    divided = sum(kernel.chosen.is_divided for kernel in plan.kernels)
    most = max((kernel.workspace for kernel in plan.kernels), default=0)
    return f"{divided} of {len(plan.kernels)} convolutions divided, workspace at most {format_size(most)}"

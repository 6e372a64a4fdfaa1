"""The answers of `mucudnn memory`: a plan's figures and choices, or the mini-batches that fit devices."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mucudnn.measuring.modelled_device import CONTEXT
from mucudnn.output.answers import Answer, Lines, table
from mucudnn.output.text import milliseconds
from mucudnn.plans.json_forms import configuration_json
from mucudnn.plans.memory.batches import FitRow
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.plan import PROMISE
from mucudnn.promises import promise_named
from mucudnn.sizes import format_size

_SHOWN = 8  # the most names listed for a choice
_FIELDS = (
    "network", "batch", "device", "costs", "policy", "memory", "floor", "peak", "average", "time_ms",
    "unlimited_ms", "exposed_ms", "bound_ms",
)  # fmt: skip


@dataclass(frozen=True)
class ShownMemory(Answer):
    """A memory plan."""

    plan: MemoryPlan

    def content(self) -> dict[str, Any]:
        """Return the form that docs/reference/json.md describes."""
        plan = self.plan
        return {
            **{name: getattr(plan, name) for name in _FIELDS},
            "promise": promise_named(plan.header.get(PROMISE, ""))._asdict(),
            "tensors": [
                {"name": tensor.name, "bytes": tensor.bytes, "choice": tensor.choice}
                for tensor in plan.tensors
            ],
            "kernels": [
                {
                    "step": planned.step,
                    "problem": str(planned.kernel.problem),
                    "pass": planned.pass_,
                    "chosen": configuration_json(planned.chosen),
                }
                for planned in plan.kernels
            ],
        }

    def lines(self) -> Lines:
        """Yield the figures of the plan, and the tensors by their choice."""
        plan = self.plan
        sources = ", ".join(f"{name} {source}" for name, source in plan.sources.items() if name != "device")
        promise = f", {plan.header[PROMISE]}" if PROMISE in plan.header else ""
        yield (
            f"{plan.network}, mini-batch {plan.batch}, on {plan.device}, policy {plan.policy} ({sources})"
            f"{promise}"
        )
        slower = plan.time_ms / plan.unlimited_ms - 1 if plan.unlimited_ms else 0.0
        slower = round(slower, 6) + 0.0  # sums of equal times may differ in the last bit
        sizes = {
            "allowed": plan.memory,
            "floor": plan.floor,
            "peak": plan.peak,
            "average": round(plan.average),
            "host memory": plan.host_bytes,
        }
        times = (
            ("training step", f"{milliseconds(plan.time_ms)} ms"),
            ("without a limit, undivided", f"{milliseconds(plan.unlimited_ms)} ms"),
            ("difference", f"{slower:+.1%}"),
            ("waits for copies", f"{milliseconds(plan.exposed_ms)} ms"),
        )
        yield table("memory", "B>", rows=(*sizes.items(), (), *times))
        yield from self._list_choices()
        divided = sum(kernel.chosen.is_divided for kernel in plan.kernels)
        most = format_size(max((kernel.workspace for kernel in plan.kernels), default=0))
        yield f"{divided} of {len(plan.kernels)} convolutions divided, workspace at most {most}"
        if plan.bound_ms:
            least = milliseconds(plan.bound_ms)
            yield f"within {plan.gap:.1%} of the proven bound: any plan takes at least {least} ms"

    def _list_choices(self) -> Iterator[str]:
        for choice in ("keep", "offload", "recompute"):
            chosen = [tensor for tensor in self.plan.tensors if tensor.choice == choice]
            chosen.sort(key=lambda tensor: -tensor.bytes)
            names = ", ".join(tensor.name for tensor in chosen[:_SHOWN])
            more = f" and {len(chosen) - _SHOWN} more" if len(chosen) > _SHOWN else ""
            total = format_size(sum(tensor.bytes for tensor in chosen))
            listed = "" if choice == "keep" or not chosen else f": {names}{more}"
            yield f"{choice}: {len(chosen)} of {len(self.plan.tensors)} saved tensors, {total}{listed}"


@dataclass(frozen=True)
class Fitting(Answer):
    """The memory that some mini-batches of a network need on some devices, and the largest mini-batches."""

    network: str
    optimizer: str | None
    rows: Sequence[FitRow]
    largest: int | None = None
    largest_with_plan: int | None = None

    def lines(self) -> Lines:
        """Yield a table of the needs, and the largest mini-batches."""
        optimizer = f"optimizer {self.optimizer}" if self.optimizer else "without an optimizer's state"
        yield f"{self.network}, {optimizer}; CUDA takes {format_size(CONTEXT)}"
        yield table(
            "device", "B>memory", ">batch", "B>peak", "B>floor", "ms>time ms", "ms>planned ms", "fits",
            "costs",
            rows=({**vars(row), "fits": _name_fit(row)} for row in self.rows),
        )  # fmt: skip
        if self.largest is not None:
            yield (f"largest mini-batch: {self.largest} without a plan, {self.largest_with_plan} with a plan")


def _name_fit(row: FitRow) -> str:
    return "yes" if row.peak <= row.memory else "no" if row.planned_ms is None else "with a plan"

"""The choice for one pass of one layer, as tables and logs show it."""

from dataclasses import dataclass

from mucudnn.arrays.call import PassCall, geometry
from mucudnn.arrays.dispatch import decided
from mucudnn.output.text import micro_batches
from mucudnn.problems.descriptor import short_text
from mucudnn.torch.operators.options import Options, plan_of


@dataclass(frozen=True)
class LayerChoice:
    """The choice for one pass of one layer; `kernel` is its short descriptor.

    `micro_batches` is a text such as `4×16 WINOGRAD_NONFUSED`, or `1×1 WINOGRAD_NONFUSED in tiles of 8` if
    the samples are divided as well. `time_ms` is the predicted time, and `workspace` the bytes that the pass
    uses. `parts` is the number of micro-batches or groups. All four are None for a pass that PyTorch
    computes, and `reason` says why it does. `is_busy` says that other programs disturbed a measurement that
    the choice depends on.
    """

    layer: str
    pass_: str
    kernel: str
    micro_batches: str | None = None
    time_ms: float | None = None
    workspace: int | None = None
    parts: int | None = None
    reason: str | None = None
    is_busy: bool = False


def choice_of_pass(name: str, call: PassCall, options: Options) -> LayerChoice:
    """Return the choice for a pass of a layer, without details while the pass is undecided."""
    ready = decided(call, plan_of(options.plan))
    if ready is None:
        return stock_choice(name, call, "not measured yet, and missing in the plan and the cache")
    chosen = ready.configuration
    text = micro_batches(chosen, " + ")
    figures = ready.predicted_ms, ready.workspace, len(chosen.parts)
    return LayerChoice(name, call.pass_, short_text(ready.problem), text, *figures, is_busy=ready.is_busy)


def stock_choice(name: str, call: PassCall, reason: str) -> LayerChoice:
    """Return the choice for a pass that PyTorch computes."""
    return LayerChoice(name, call.pass_, short_text(geometry(call)[0]), reason=reason)

"""The choice for one pass of one layer, as tables and logs show it."""

from dataclasses import dataclass

from torch import Tensor

from mucudnn.arrays.call import Call, geometry
from mucudnn.arrays.dispatch import decided
from mucudnn.output.text import micro_batches
from mucudnn.problems.descriptor import short_text
from mucudnn.solver import Tiling
from mucudnn.torch.layers.functional import Operands
from mucudnn.torch.operators import passes
from mucudnn.torch.operators.options import Options, plan_of


@dataclass(frozen=True)
class LayerChoice:
    """The choice for one pass of one layer; `kernel` is its short descriptor.

    `micro_batches` is a text such as `4×16 WINOGRAD_NONFUSED`, or `tiles 3×16 WINOGRAD_NONFUSED` if each
    sample is divided into tiles, whose lengths the text has. `time_ms` is the predicted time, and
    `workspace` the bytes that the pass uses. All three are None for a pass that PyTorch computes.
    """

    layer: str
    pass_: str
    kernel: str
    micro_batches: str | None = None
    time_ms: float | None = None
    workspace: int | None = None


def choice_of_forward(name: str, given: Operands, is_stock: bool) -> str:
    """Return a sentence about the forward pass of a layer that has just run."""
    call = call_of_pass("forward", given.x, given.w, given.x, given.options)
    one = choice_of_pass(name, "forward", call, given.options)
    chosen = "PyTorch's own convolution" if is_stock or one.micro_batches is None else one.micro_batches
    return f"the layer {name} is {one.kernel}: its forward pass runs in {chosen}"


def choice_of_pass(name: str, pass_: str, call: Call, options: Options) -> LayerChoice:
    """Return the choice for a pass of a layer, which may not be decided yet."""
    ready = decided(call, plan_of(options.plan))
    if ready is None:
        return LayerChoice(name, pass_, short_text(geometry(call)[0]))
    chosen = ready.configuration
    text = micro_batches(chosen, " + ")
    if isinstance(chosen, Tiling):
        text = f"tiles {text}"
    return LayerChoice(name, pass_, short_text(ready.problem), text, ready.predicted_ms, ready.workspace)


def call_of_pass(pass_: str, x: Tensor, w: Tensor, y: Tensor, options: Options) -> Call:
    """Return the call that the operator of a pass makes."""
    vx, vw, vy = (passes.view_of(tensor, "tensor", options) for tensor in (x, w, y))
    return passes.call_of(pass_, vx, vx.shape, vw.shape, None if pass_ == "forward" else vy.shape, options)

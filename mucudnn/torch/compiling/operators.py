"""The three passes as operators of compiled graphs: the engine runs them, and PyTorch only if it fails.

The pass over Inductor's graph has already decided for the engine. Inductor may hand over tensors in any
memory format, because it plans formats later; a tensor in another format than the result's is copied.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mucudnn.arrays.call import PassCall
from mucudnn.arrays.dispatch import Prepared, prepared
from mucudnn.arrays.recent import Recent
from mucudnn.torch.operators import passes
from mucudnn.torch.operators.options import Ints, Options
from mucudnn.torch.operators.stock import random_tensors
from mucudnn.torch.tracing.recorder import DATA_TYPES

_SCHEMA = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, bool channels_last, str workspace"
)
_TENSORS = {
    "forward": "Tensor x, Tensor w",
    "backward_data": "Tensor dy, Tensor w, SymInt[] shape",
    "backward_filter": "Tensor x, Tensor dy, SymInt[] shape",
}


class CompiledCall(NamedTuple):
    """A pass of a compiled graph. `x` and `w` are shapes with the axes (N, C, ...), (K, C / groups, ...)."""

    pass_: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    data_type: torch.dtype
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    channels_last: bool  # the memory format of all three tensors
    workspace: str  # the limit

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of the result of the forward pass."""
        sizes = zip(self.x[2:], self.w[2:], self.stride, self.padding, self.dilation, strict=True)
        return self.x[0], self.w[0], *((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in sizes)

    @property
    def options(self) -> Options:
        """The options of mucudnn's other operators."""
        last = "wxy" if self.channels_last else ""
        sizes = self.stride, self.padding, self.dilation, self.groups
        return Options(*sizes, last, self.workspace, None, fallback=True)

    def prepare(self) -> Prepared:
        """Return the engine's fastest division within the limit, measured if the cache lacks it.

        Raises MucudnnError.
        """
        x, w, y = (_in_memory(shape, self.channels_last) for shape in (self.x, self.w, self.y))
        call = PassCall(
            self.pass_, "cpu", DATA_TYPES[self.data_type], "nhwc" if self.channels_last else "nchw",
            x, w, None if self.pass_ == "forward" else y,
            self.stride, self.padding, self.dilation, self.groups, self.workspace,
            threads=torch.get_num_threads(),
        )  # fmt: skip
        return prepared(call)


def random_operands(call: CompiledCall) -> tuple[Tensor, Tensor, Tensor]:
    """Return random x, w and y of a call."""
    return random_tensors("cpu", call.prepare().problem, call.x[0])


def run(call: CompiledCall, first: Tensor, second: Tensor) -> Tensor:
    """Run a pass on its two tensors, in the engine or, with a warning, by PyTorch's operator."""
    key = call, torch.get_num_threads()
    ready = _ready[key]
    if ready is None:
        try:
            ready = call.prepare()
        except passes.FAILURES:  # the passes below meet the same failure, warn and run PyTorch's operator
            pass
        else:
            _ready[key] = ready
    if call.pass_ == "forward":
        return passes.run_forward(first, second, None, call.options, ready)
    shape = call.x if call.pass_ == "backward_data" else call.w
    return passes.run_backward(call.pass_, first, second, shape, call.options, ready)


_ready: Recent[Any, Prepared] = Recent(2048)


def _in_memory(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    return (shape[0], *shape[2:], shape[1]) if channels_last else shape


def _call(pass_: str, first: Tensor, second: Tensor, *arguments: Any) -> CompiledCall:
    shapes = tuple(first.shape), tuple(second.shape)
    if pass_ == "forward":
        x, w = shapes
    else:
        result, *arguments = arguments  # type: ignore[assignment]
        x, w = (tuple(result), shapes[1]) if pass_ == "backward_data" else (shapes[0], tuple(result))
    stride, padding, dilation, groups, last, limit = arguments
    return CompiledCall(
        pass_, x, w, first.dtype, tuple(stride), tuple(padding), tuple(dilation), groups, last, limit
    )


def _result_shape(call: CompiledCall) -> Ints:
    return {"forward": call.y, "backward_data": call.x, "backward_filter": call.w}[call.pass_]


_library = torch.library.Library("mucudnn_compiled", "DEF")


def _define(pass_: str) -> Any:
    def kernel(first: Tensor, second: Tensor, *arguments: Any) -> Tensor:
        return run(_call(pass_, first, second, *arguments), first, second)

    def fake(first: Tensor, second: Tensor, *arguments: Any) -> Tensor:
        call = _call(pass_, first, second, *arguments)
        return passes.empty_result(_result_shape(call), first, call.channels_last)

    tags = torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag
    _library.define(f"{pass_}({_TENSORS[pass_]}, {_SCHEMA}) -> Tensor", tags=tags)
    _library.impl(pass_, kernel, "CPU")
    torch.library.register_fake(f"mucudnn_compiled::{pass_}", fake, lib=_library)
    return getattr(torch.ops.mucudnn_compiled, pass_).default


OPERATORS: dict[str, Callable[..., Tensor]] = {pass_: _define(pass_) for pass_ in _TENSORS}

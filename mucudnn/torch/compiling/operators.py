"""The three passes as operators of compiled graphs: the engine runs them, and PyTorch only if it fails.

The pass over Inductor's graph has already decided for the engine. Inductor plans memory formats later, and
`stride_orders` tells it those of x and dy. A filter in another format than the result's is copied in each
run.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mucudnn._native import Problem
from mucudnn.arrays.call import PassCall, geometry, limit_of
from mucudnn.arrays.devices import device_named
from mucudnn.arrays.dispatch import Prepared, prepare_slices
from mucudnn.arrays.recent import Recent
from mucudnn.measuring.candidates import runnable, wastes_transform
from mucudnn.problems.kernels import Kernel
from mucudnn.torch.operators import passes
from mucudnn.torch.operators.options import TENSORS, Options, output_shape
from mucudnn.torch.operators.stock import random_tensors
from mucudnn.torch.tracing.recorder import DATA_TYPES

COMMON_ARGUMENTS = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, bool channels_last, str workspace, "
    "bool constant_filter"
)
SCHEMA = f"{COMMON_ARGUMENTS}, SymInt micro_batch, str algorithm"


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
    # True if freezing has made w a constant, which the engine may keep in its own form.
    constant_filter: bool = False

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of the result of the forward pass."""
        return output_shape(self.x, self.w, self.stride, self.padding, self.dilation)

    @property
    def options(self) -> Options:
        """The options of mucudnn's other operators."""
        last = "wxy" if self.channels_last else ""
        sizes = self.stride, self.padding, self.dilation, self.groups
        return Options(*sizes, last, self.workspace, None, True, None, self.constant_filter)

    @property
    def call(self) -> PassCall:
        """The call as the engine sees it, with the axes in the order of memory."""
        x, w, y = (passes.in_memory(shape, self.channels_last) for shape in (self.x, self.w, self.y))
        return PassCall(
            self.pass_, "cpu", DATA_TYPES[self.data_type], "nhwc" if self.channels_last else "nchw",
            x, w, None if self.pass_ == "forward" else y,
            self.stride, self.padding, self.dilation, self.groups, self.workspace,
            threads=passes.host_threads(), constant_filter=self.constant_filter,
        )  # fmt: skip

    @property
    def problem(self) -> Problem:
        """The problem of the engine. Raises UsageError if there is none."""
        return geometry(self.call)[0]


class EngineChoice(NamedTuple):
    """The engine's way to run a call: slices of the mini-batch, by one algorithm."""

    micro_batch: int
    algorithm: str

    def __str__(self) -> str:
        return f"{self.micro_batch} {self.algorithm}"


def choices(call: CompiledCall) -> list[EngineChoice]:
    """Return the ways in which the engine can run a call within its workspace limit. Raises MucudnnError.

    An algorithm runs the largest slices that fit the limit, and also single samples, whose data stays in the
    caches. 16-bit filter gradients stay whole, because each slice would round its sum.
    """
    kernel, limit = Kernel(call.problem, call.pass_), limit_of(call.workspace)
    engine = device_named("cpu", passes.host_threads(), call.constant_filter).engine
    n = kernel.mini_batch
    must_be_whole = call.pass_ == "backward_filter" and call.data_type is not torch.float32
    sizes = [n] if must_be_whole else [n, *(2**e for e in range(n.bit_length() - 1, -1, -1) if 2**e < n)]
    largest, smallest = dict[str, int](), list[str]()
    for size in sizes:
        for listed in runnable(engine.enumerate(kernel.at(size))):
            if wastes_transform(kernel, listed.algorithm):
                continue
            if limit is None or listed.workspace <= limit:
                largest.setdefault(listed.algorithm, size)
                smallest += [listed.algorithm] if size == 1 else []
    ways = [EngineChoice(size, algorithm) for algorithm, size in largest.items()]
    return list(dict.fromkeys([*ways, *(EngineChoice(1, algorithm) for algorithm in smallest)]))


def random_operands(call: CompiledCall) -> tuple[Tensor, Tensor, Tensor]:
    """Return random x, w and y of a call."""
    return random_tensors("cpu", call.problem, call.x[0])


def run(call: CompiledCall, choice: EngineChoice, first: Tensor, second: Tensor, third: Any = None) -> Tensor:
    """Run a pass on its two tensors, in the engine or, with a warning, by PyTorch's operator.

    `third` is the bias of the forward pass or None; the other passes do not need it.
    """
    key = call, choice, passes.host_threads()
    ready = _ready[key]
    if ready is None:
        try:
            ready = prepare_slices(call.call, *choice)
        except passes.FAILURES:  # the passes below meet the same failure, warn and run PyTorch's operator
            pass
        else:
            _ready[key] = ready
    if call.pass_ != "forward":
        third = call.x if call.pass_ == "backward_data" else call.w
    return passes.run(call.pass_, first, second, third, call.options, ready)


_ready: Recent[Any, Prepared] = Recent(2048)


def _call(
    pass_: str, first: Tensor, second: Tensor, third: Any, *arguments: Any
) -> tuple[CompiledCall, EngineChoice | None]:
    x, w = tuple(first.shape), tuple(second.shape)
    if pass_ == "backward_data":
        x = tuple(third)
    elif pass_ == "backward_filter":
        w = tuple(third)
    stride, padding, dilation, groups, last, limit, is_constant, *choice = arguments
    sizes = tuple(stride), tuple(padding), tuple(dilation)
    call = CompiledCall(pass_, x, w, first.dtype, *sizes, groups, last, limit, is_constant)
    return call, EngineChoice(*choice) if choice else None


_library = torch.library.Library("mucudnn_compiled", "DEF")


def define_operator(name: str, pass_: str, schema: str, run_call: Callable[..., Tensor]) -> Any:
    """Define an operator with the tensors of a pass and the arguments of a schema.

    `run_call` gets a CompiledCall, the choice or None if the schema has none, and the tensors.
    """

    def kernel(first: Tensor, second: Tensor, third: Any, *arguments: Any) -> Tensor:
        call, choice = _call(pass_, first, second, third, *arguments)
        return run_call(call, choice, first, second, third)

    def fake(first: Tensor, second: Tensor, third: Any, *arguments: Any) -> Tensor:
        call, _ = _call(pass_, first, second, third, *arguments)
        result = {"forward": call.y, "backward_data": call.x, "backward_filter": call.w}[pass_]
        return passes.empty_result(result, first, call.channels_last)

    tags = torch.Tag.flexible_layout, torch.Tag.pt2_compliant_tag
    _library.define(f"{name}({TENSORS[pass_]}, {schema}) -> Tensor", tags=tags)
    _library.impl(name, kernel, "CPU")
    torch.library.register_fake(f"mucudnn_compiled::{name}", fake, lib=_library)
    return getattr(torch.ops.mucudnn_compiled, name).default


def stride_orders(
    pass_: str, first: Any, second: Any, third: Any,
    stride: Sequence[Any], padding: Any, dilation: Any, groups: Any, channels_last: bool, *_: Any,
) -> tuple[Sequence[int] | None, ...]:  # fmt: skip
    """Return the order of strides that an operator needs in each of its first two tensors; None for a filter.

    The arguments are the operator's. An order has the place of each axis: 0 for the smallest stride.
    """
    dims = len(stride) + 2
    order = (dims - 1, 0, *range(dims - 2, 0, -1)) if channels_last else tuple(reversed(range(dims)))
    return order, order if pass_ == "backward_filter" else None


OPERATORS: dict[str, Callable[..., Tensor]] = {
    pass_: define_operator(pass_, pass_, SCHEMA, lambda *arguments: run(*arguments)) for pass_ in TENSORS
}

"""The names of Inductor and Dynamo that are not public. They were read and tested in PyTorch 2.9 and 2.13.

The import takes 1.3 s, so only programs that compile wait for it. It fails if PyTorch lacks any name, and
compiled models then run the operators of `mucudnn.torch.operators`: see `tracing`. `mucudnn.torch.private`
has PyTorch's other private names.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import fx
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._guards import TracingContext
from torch._inductor import config, custom_graph_pass
from torch._inductor.custom_graph_pass import get_hash_for_files
from torch._inductor.ir import ExternKernel
from torch._inductor.lowering import add_needs_realized_inputs, fallback_handler, register_lowering
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.virtualized import V

# Dynamo's present trace, which names the backend that gets its graph.
_current_trace = InstructionTranslator.current_tx
# The object that accompanies the present graph from its trace to its code; None outside.
present_trace: Callable[[], Any] = TracingContext.try_get
# The workspace limits of the converted modules in a graph. The keys are what `present_trace` returns.
limits_of_traces: WeakKeyDictionary[Any, list[int | None]] = WeakKeyDictionary()
# A loop nest, which is ordered by what it reads and writes, decides it anew when it is fused.
_recompute_nest = SchedulerNode.recompute_size_and_body
# Makes the kernel that computes an input write it in an order of strides, or inserts a copy.
_require_stride_order = ExternKernel.require_stride_order
# Inductor's cache of compiled graphs identifies a pass by the code that this function hashes.
hash_files: Callable[[tuple[str, ...]], bytes] = get_hash_for_files
# Inductor's cache accepts only passes of this class. PyTorch 2.9 lacks its subclass that gets `is_inference`.
_Aware: Any = getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None)
GraphPass: Any = _Aware or custom_graph_pass.CustomGraphPass


def is_traced_for_inductor() -> bool:
    """Return whether Dynamo traces now, and gives its graph to Inductor."""
    try:
        compiler = _current_trace().output.compiler_fn
    except AttributeError:  # nothing is traced
        return False
    # `torch.compile` hands over an object with this name. Other backends that end in Inductor are unknown.
    return getattr(compiler, "__name__", None) == "inductor"


def is_ahead_of_time() -> bool:
    """Return whether AOTInductor compiles, for programs that may lack mucudnn."""
    return bool(V.aot_compilation)


def passes_before() -> list[Any]:
    """Return the passes that Inductor runs after freezing, in their order; the user may have set some."""
    set_now = config.post_grad_custom_pre_pass
    if set_now is None:
        return []
    return list(set_now) if isinstance(set_now, list | tuple) else [set_now]


def set_pass(graph_pass: Any) -> None:
    """Let Inductor run this pass, and no other, after freezing."""
    config.post_grad_custom_pre_pass = graph_pass


@cache
def keep_scatters_before_readers() -> None:
    """Correct how Inductor orders loop nests, in all graphs that this process compiles from now on.

    When PyTorch 2.13 fuses a loop nest with another whose loops differ, it forgets which of the buffers that
    the nest reads are scattered into before, as gradients of poolings are. They could be read while they are
    zero.
    """

    def recompute_and_rename(self: Any, *arguments: Any, **keywords: Any) -> None:
        _recompute_nest(self, *arguments, **keywords)
        self.set_read_writes(self.read_writes.rename(getattr(self, "mutation_renames", {})))

    SchedulerNode.recompute_size_and_body = recompute_and_rename


def require_stride_orders(operator: Any, orders_of: Callable[..., Sequence[Sequence[int] | None]]) -> None:
    """Tell Inductor in which orders of strides an operator needs its first inputs.

    `orders_of` takes the operator's arguments and returns an order for each of these inputs, or None for any.
    An order has the place of each axis: 0 for the smallest stride. The kernel that computes an input writes
    it in that order if nothing else fixes its strides; otherwise Inductor inserts a copy.
    """
    run = fallback_handler(operator)

    def lower_operator(*arguments: Any) -> Any:
        inputs = list(arguments)
        for place, order in enumerate(orders_of(*arguments)):
            if order is not None:
                with suppress(RuntimeError):  # from PyTorch 2.13, which cannot compare some symbolic strides
                    inputs[place] = _require_stride_order(inputs[place], order)
        return run(*inputs)

    add_needs_realized_inputs(operator)
    register_lowering(operator, type_promotion_kind=None)(lower_operator)


def wants_inference(graph_pass: Any) -> bool:
    """Return whether a pass is to be told whether the graph is an inference."""
    return _Aware is not None and isinstance(graph_pass, _Aware)


def known_shape(node: fx.Node) -> tuple[int, ...] | None:
    """Return the shape of a tensor, with the sizes of the first call where they are dynamic.

    Return None if a size depends on data. No size becomes static by this.
    """
    sizes = [each if type(each) is int else each.node.hint for each in node.meta["val"].shape]
    return None if None in sizes else tuple(map(int, sizes))


_PACKED = "mkldnn::_convolution_pointwise"


def is_packed_convolution(node: fx.Node) -> bool:
    """Return whether the node is oneDNN's convolution with a packed filter that nothing is fused with yet.

    Its arguments are (x, packed filter, bias, padding, stride, dilation, groups, "none", [], "").
    """
    return (
        node.op == "call_function"
        and isinstance(node.target, torch._ops.OpOverload)
        and node.target.name() == _PACKED
        and node.args[7] == "none"
    )


def run_packed(x: Any, packed: Any, bias: Any, arguments: Sequence[Any], sum_: Any) -> Any:
    """Run oneDNN's convolution with a packed filter, and with the ReLU that Inductor fuses with it.

    If `sum_` is not None, it gets the result added in place before the ReLU. `arguments` are padding, stride,
    dilation and groups.
    """
    relu: tuple[Any, ...] = "relu", [], ""
    if sum_ is None:
        return torch.ops.mkldnn._convolution_pointwise.default(x, packed, bias, *arguments, *relu)
    in_place = torch.ops.mkldnn._convolution_pointwise_.binary
    return in_place(sum_, x, packed, bias, *arguments, "add", 1.0, *relu)

"""The names of PyTorch that are not public. They were read and tested in PyTorch 2.9 and 2.13.

If one is missing, `inductor` returns None, and compiled models run the operators of
`mucudnn.torch.operators`.
"""

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import fx

from mucudnn.errors import MucudnnWarning
from mucudnn.forks import no_fork


class Inductor(NamedTuple):
    """The modules and classes of PyTorch that a pass over Inductor's graph needs."""

    config: Any  # torch._inductor.config, with the pass that runs after freezing and before fusion
    graph_pass: Any  # the base class of passes with which Inductor's cache of compiled graphs works
    inference_aware: Any  # its subclass that gets `is_inference`; None in PyTorch 2.9
    lowering: Any  # torch._inductor.lowering, which turns a graph's operators into what code is generated for
    kernel: Any  # torch._inductor.ir.ExternKernel, the class of operators without generated code
    virtualized: Any  # V, whose `aot_compilation` is true while AOTInductor compiles
    translator: Any  # the class whose `current_tx` is Dynamo's present trace
    tracing_context: Any  # the class whose `try_get` returns one object from a graph's trace to its code
    scheduler_node: Any  # the class of a loop nest, which is ordered by what it reads and writes
    hash_files: Any  # the function with which passes are to identify their code


@cache
def inductor() -> Inductor | None:
    """Return the names, imported when a model is compiled. Warn once and return None if PyTorch lacks any."""
    try:
        with no_fork:
            from torch._dynamo.symbolic_convert import InstructionTranslator
            from torch._guards import TracingContext
            from torch._inductor import config, custom_graph_pass, lowering
            from torch._inductor.ir import ExternKernel
            from torch._inductor.scheduler import SchedulerNode
            from torch._inductor.virtualized import V
        names = Inductor(
            config,
            custom_graph_pass.CustomGraphPass,
            getattr(custom_graph_pass, "CustomInferenceAwareGraphPass", None),
            lowering,
            ExternKernel,
            V,
            InstructionTranslator,
            TracingContext,
            SchedulerNode,
            custom_graph_pass.get_hash_for_files,
        )
        for owner, name in (
            *((config, "post_grad_custom_pre_pass"), (V, "aot_compilation")),
            *((InstructionTranslator, "current_tx"), (TracingContext, "try_get")),
            *((lowering, "add_needs_realized_inputs"), (lowering, "fallback_handler")),
            *((lowering, "register_lowering"), (ExternKernel, "require_stride_order")),
            (SchedulerNode, "recompute_size_and_body"),
        ):
            getattr(owner, name)
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f"PyTorch {torch.__version__} is unknown to mucudnn inside torch.compile ({error}): compiled "
            "convolutions run mucudnn's operators, which Inductor cannot fuse with their neighbours",
            MucudnnWarning,
            stacklevel=2,
        )
        return None
    return names


def is_traced_for_inductor() -> bool:
    """Return whether Dynamo traces now, and gives its graph to Inductor."""
    try:
        compiler = _names().translator.current_tx().output.compiler_fn
    except AttributeError:  # nothing is traced
        return False
    # `torch.compile` hands over an object with this name. Other backends that end in Inductor are unknown.
    return getattr(compiler, "__name__", None) == "inductor"


def present_trace() -> Any:
    """Return the object that accompanies the present graph from its trace to its code; None outside."""
    return _names().tracing_context.try_get()


# The workspace limits of the converted modules in a graph. The keys are what `present_trace` returns.
limits_of_traces: WeakKeyDictionary[Any, list[int | None]] = WeakKeyDictionary()


def is_ahead_of_time() -> bool:
    """Return whether AOTInductor compiles, for programs that may lack mucudnn."""
    return bool(_names().virtualized.aot_compilation)


def passes_before() -> list[Any]:
    """Return the passes that Inductor runs after freezing, in their order; the user may have set some."""
    set_now = _names().config.post_grad_custom_pre_pass
    if set_now is None:
        return []
    return list(set_now) if isinstance(set_now, list | tuple) else [set_now]


def set_pass(graph_pass: Any) -> None:
    """Let Inductor run this pass, and no other, after freezing."""
    _names().config.post_grad_custom_pre_pass = graph_pass


@cache
def keep_scatters_before_readers() -> None:
    """Correct how Inductor orders loop nests, in all graphs that this process compiles from now on.

    When PyTorch 2.13 fuses a loop nest with another whose loops differ, it forgets which of the buffers that
    the nest reads are scattered into before, as gradients of poolings are. They could be read while they are
    zero.
    """
    node = _names().scheduler_node
    recompute = node.recompute_size_and_body

    def recompute_and_rename(self: Any, *arguments: Any, **keywords: Any) -> None:
        recompute(self, *arguments, **keywords)
        self.set_read_writes(self.read_writes.rename(getattr(self, "mutation_renames", {})))

    node.recompute_size_and_body = recompute_and_rename


def require_stride_orders(operator: Any, orders_of: Callable[..., Sequence[Sequence[int] | None]]) -> None:
    """Tell Inductor in which orders of strides an operator needs its first inputs.

    `orders_of` takes the operator's arguments and returns an order for each of these inputs, or None for any.
    An order has the place of each axis: 0 for the smallest stride. The kernel that computes an input writes
    it in that order if nothing else fixes its strides; otherwise Inductor inserts a copy.
    """
    lowering, kernel = _names().lowering, _names().kernel
    run = lowering.fallback_handler(operator)

    def lower_operator(*arguments: Any) -> Any:
        inputs = list(arguments)
        for place, order in enumerate(orders_of(*arguments)):
            if order is not None:
                with suppress(RuntimeError):  # from PyTorch 2.13, which cannot compare some symbolic strides
                    inputs[place] = kernel.require_stride_order(inputs[place], order)
        return run(*inputs)

    lowering.add_needs_realized_inputs(operator)
    lowering.register_lowering(operator, type_promotion_kind=None)(lower_operator)


def pass_class() -> Any:
    """Return the base class of passes that Inductor's cache of compiled graphs accepts.

    If PyTorch has one whose passes are told whether the graph is an inference, it is that one.
    """
    names = _names()
    return names.inference_aware or names.graph_pass


def hash_files(paths: Sequence[Path]) -> bytes:
    """Return a hash of the contents of files."""
    digest: bytes = _names().hash_files(tuple(map(str, paths)))
    return digest


def wants_inference(graph_pass: Any) -> bool:
    """Return whether a pass is to be told whether the graph is an inference."""
    aware = _names().inference_aware
    return aware is not None and isinstance(graph_pass, aware)


def _names() -> Inductor:
    names = inductor()
    assert names is not None
    return names


def module_stack(node: fx.Node) -> Sequence[Any]:
    """Return the classes of the modules around a node, the outermost first, or their qualified names.

    A node of a backward graph has the modules of the forward node that it belongs to.
    """
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    return [module for _, module in stack.values()]


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

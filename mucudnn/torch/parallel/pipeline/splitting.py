"""`split`: cut an unchanged model into stages that take about the same time."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torch import fx, nn

from mucudnn.errors import MucudnnError, UsageError
from mucudnn.output.table import text_table
from mucudnn.sizes import format_size
from mucudnn.solver.devices.cutting import cut
from mucudnn.solver.devices.pipelines import Stage
from mucudnn.torch.parallel.pipeline.arguments import Arguments
from mucudnn.torch.parallel.pipeline.comparing import check_stages
from mucudnn.torch.parallel.pipeline.node_costs import NodeCost, measure_nodes
from mucudnn.torch.parallel.pipeline.stages import unchanged
from mucudnn.torch.parallel.pipeline.tracing import trace_graph
from mucudnn.torch.parallel.ranks import naming

T = TypeVar("T")
_OPERATIONS = "call_module", "call_function", "call_method"


class SplitStage(fx.GraphModule):
    """A stage whose parameters and buffers have their names in the whole model."""


class Split(list[SplitStage]):
    """The stages of a model, and what they cost.

    Attributes:
        costs: the costs of each stage for one micro-batch.
        first: the name of each stage's first operation.
    """

    def __init__(self, stages: Iterable[SplitStage], costs: Sequence[Stage], first: Sequence[str]) -> None:
        super().__init__(stages)
        self.costs, self.first = costs, first

    def __str__(self) -> str:
        """Return a table of the stages' costs for one micro-batch."""
        heads = "stage", "begins with", "forward ms", "backward ms", "receives", "activations", "weights"
        rows = [
            (
                str(number),
                first,
                f"{cost.forward_ms:.3g}",
                f"{cost.backward_ms:.3g}",
                format_size(cost.input),
                format_size(cost.activations),
                format_size(cost.weights),
            )
            for number, (first, cost) in enumerate(zip(self.first, self.costs, strict=True))
        ]
        return text_table(heads, rows, [True, False, True, True, True, True, True])


def split(model: nn.Module, *, stages: int, example_input: Any) -> Split:
    """Cut an unchanged model into stages whose slowest takes as little time as possible.

    Up to 5 % more time is accepted for a cut that sends fewer bytes. `torch.fx` traces the model, and modules
    whose code it cannot trace stay whole. All operations are measured, and the stages are compared with the
    model, on rank 0 if there are several ranks, each of which must call this function. Values that a later
    stage needs pass through the stages between.

    The stages share their modules with the model, and their parameters have the same names, so `state_dict`
    of a pipeline has the names of the model.

    Args:
        model: the model, which may be on the meta device.
        stages: the number of stages.
        example_input: inputs of one micro-batch, on the device of the model, or the device that shall measure
            it: a tensor, or a tuple or dict of tensors, as in `BidirectionalPipeline.step`.

    Raises:
        UsageError: the model cannot be traced, or has too few places for a cut, or the stages would not
            compute what the model does. All ranks raise it.
    """
    if stages < 1:
        raise UsageError(f"stages is {stages}, must be at least 1")
    example = Arguments.of(example_input, "example_input")
    with unchanged(model, example.tensors[0].device):
        return _split(model, stages, example)


def _split(model: nn.Module, stages: int, example: Arguments) -> Split:
    try:
        graph = trace_graph(model, example)
    except MucudnnError:
        raise
    except Exception as error:  # the model's code may raise any error about a proxy
        raise UsageError(
            f"the forward method of {type(model).__name__} cannot be traced by torch.fx, so cut the model by "
            f"hand: {type(error).__name__}: {error}"
        ) from error
    costs = _on_rank_0("measure", lambda: measure_nodes(model, graph, list(example.tensors)))
    operations = [node for node in graph.nodes if node.op in _OPERATIONS]
    crossings = [_crossing(graph, operations, i) for i in range(1, len(operations))]
    last_changes = {
        _memory_of(changed, costs): number
        for number, node in enumerate(operations)
        for changed in costs[node.name].changes
    }
    sent = [_bytes_sent(crossing, i, last_changes, costs) for i, crossing in enumerate(crossings, 1)]
    times = [costs[node.name].forward_ms + costs[node.name].backward_ms for node in operations]
    try:
        starts = cut(times, sent, stages)
    except ValueError as error:
        raise UsageError(
            f"{error}: a cut can be made where all values that later operations need are tensors, none of "
            "which is a view of another that changes in place"
        ) from None
    borders = [0, *starts, len(operations)]
    made, stage_costs = [], []
    for a, b in itertools.pairwise(borders):
        received = crossings[a - 1] if a else [node for node in graph.nodes if node.op == "placeholder"]
        passed = crossings[b - 1] if b < len(operations) else None
        made.append(_make_stage(model, graph, received, operations[a:b], passed))
        stage_costs.append(_cost_of(made[-1], received, operations[a:b], costs))
    _on_rank_0("compare the stages with", lambda: check_stages(model, made, example))
    return Split(made, stage_costs, [_describe(operations[a]) for a in borders[:-1]])


def merge_stages(modules: Mapping[int, nn.Module]) -> nn.Module:
    """Return one module of several stages, in which parameters have their names in the whole model.

    These are the names in `nn.Sequential(*stages)`, or those of the undivided model after `split`.
    """
    whole = nn.Module()
    for stage, module in modules.items():
        if isinstance(module, SplitStage):
            _merge(whole, module)
        else:
            whole.add_module(str(stage), module)
    return whole


def _merge(whole: nn.Module, part: nn.Module) -> None:
    """Add the modules and tensors of a tree, whose inner modules are containers, to another tree."""
    for name, child in part.named_children():
        if type(child) is not nn.Module:
            whole.add_module(name, child)
            continue
        if name not in whole._modules:
            whole.add_module(name, nn.Module())
        _merge(whole.get_submodule(name), child)
    for name, parameter in part.named_parameters(recurse=False):
        whole.register_parameter(name, parameter)
    for name, buffer in part.named_buffers(recurse=False):
        whole.register_buffer(name, buffer, name not in part._non_persistent_buffers_set)


def _on_rank_0(verb: str, function: Callable[[], T]) -> T:
    """Return the result of a function on rank 0, because all ranks must cut alike. Raises UsageError."""
    answer: list[Any] = [None, ""]
    cause: Exception | None = None
    is_alone = not (dist.is_available() and dist.is_initialized())
    if is_alone or dist.get_rank() == 0:
        try:
            answer = [function(), ""]
        except Exception as error:  # the model's code may raise any error
            cause = error
            doing = (
                ""
                if isinstance(error, UsageError)
                else f"rank 0 could not {verb} the model: {type(error).__name__}: "
            )
            answer = [None, f"{doing}{error}"]
    if not is_alone:
        with naming("this rank waited for rank 0, which measures and compares for all"):
            dist.broadcast_object_list(answer, 0)
    result: T
    result, failure = answer
    if failure:
        raise UsageError(failure) from cause
    return result


def _crossing(graph: fx.Graph, operations: Sequence[fx.Node], start: int) -> list[fx.Node]:
    """Return the inputs and results of operations before `start` that others need, in order."""
    later = {*operations[start:], *(node for node in graph.nodes if node.op == "output")}
    earlier = [node for node in graph.nodes if node.op == "placeholder"] + list(operations[:start])
    return [node for node in earlier if not later.isdisjoint(node.users)]


def _memory_of(name: str, costs: Mapping[str, NodeCost]) -> str:
    """Return the name of the value that owns the memory of a value, or of a tensor that autograd saves."""
    while name in costs and (base := costs[name].base) is not None:
        name = base
    return name


def _bytes_sent(
    crossing: Sequence[fx.Node], start: int, last_changes: Mapping[str, int], costs: Mapping[str, NodeCost]
) -> float:
    """Return the bytes that a cut before the operation `start` sends, or infinity if it cannot be made."""
    sizes = [costs[node.name].output for node in crossing]
    # After a message, views no longer share memory, so a change of one would not be a change of the other.
    memories = Counter(_memory_of(node.name, costs) for node in crossing)
    differs = any(count > 1 and last_changes.get(name, -1) >= start for name, count in memories.items())
    if not sizes or None in sizes or differs:
        return math.inf
    return float(sum(size for size in sizes if size is not None))


def _make_stage(
    model: nn.Module,
    graph: fx.Graph,
    received: Sequence[fx.Node],
    operations: Sequence[fx.Node],
    passed: Sequence[fx.Node] | None,
) -> SplitStage:
    """Return the stage of some operations, which passes values on, or the model's outputs if that is None."""
    part, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in received:
        copies[node] = part.placeholder(str(node.target) if node.op == "placeholder" else node.name)

    def copy(node: fx.Node) -> fx.Node:
        if node not in copies:  # weights belong to each stage that uses them
            assert node.op == "get_attr"
            copies[node] = part.node_copy(node)
        return copies[node]

    for node in operations:
        for needed in node.all_input_nodes:
            copy(needed)
        copies[node] = part.node_copy(node, copy)
    if passed is None:
        used = [str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")]
        for name, _ in (*model.named_parameters(), *model.named_buffers()):
            if not any(f"{name}.".startswith(f"{target}.") for target in used):
                part.create_node("get_attr", name)  # so that no name is missing in the stages
        part.output(fx.map_arg(graph.output_node().args[0], copy))
    else:
        part.output(tuple(copies[node] for node in passed))
    stage = SplitStage(model, part)
    for name, _ in list(stage.named_buffers()):
        path, _, own = name.rpartition(".")
        origin = model.get_submodule(path)
        # A tensor that the forward method creates is a buffer of the stage only.
        if own in origin._non_persistent_buffers_set or own not in origin._buffers:
            stage.get_submodule(path)._non_persistent_buffers_set.add(own)
    return stage


def _describe(operation: fx.Node) -> str:
    """Return the name of a module, or a function's name with that of the module that calls it."""
    if operation.op == "call_module":
        return str(operation.target)
    inside = operation.meta["inside"]
    return getattr(operation.target, "__name__", str(operation.target)) + (inside and f" in {inside}")


def _cost_of(
    stage: SplitStage,
    received: Sequence[fx.Node],
    operations: Sequence[fx.Node],
    costs: Mapping[str, NodeCost],
) -> Stage:
    own = [costs[node.name] for node in operations]
    inputs = {node.name: costs[node.name].output or 0 for node in received}
    held = {_memory_of(name, costs): size for name, size in inputs.items()}
    for cost in own:
        held.update((_memory_of(name, costs), size) for name, size in cost.saved.items())
    return Stage(
        sum(cost.forward_ms for cost in own),
        sum(cost.backward_ms for cost in own),
        activations=max(sum(held.values()), sum(inputs.values())),
        input=sum(inputs.values()),
        weights=2 * sum(p.numel() * p.element_size() for p in stage.parameters()),
    )

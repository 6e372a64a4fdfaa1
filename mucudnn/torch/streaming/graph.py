"""The operators of a module on one sample, in their order, and the axes along which each can be divided."""

import operator
import warnings
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._decomp import get_decompositions
from torch.fx import Graph, Node
from torch.utils._pytree import tree_flatten, tree_unflatten

from mucudnn.errors import UsageError
from mucudnn.torch.choosing.trials import digest
from mucudnn.torch.streaming.nodes import all_of, shape_of
from mucudnn.torch.streaming.rules import along, arguments, has_rule, shapes, step, windows  # noqa: F401 (they register)
from mucudnn.torch.streaming.statistics import Mean, Statistic, statistic_of
from mucudnn.torch.tracing.trace import spell_inputs
from mucudnn.torch.windows.spans import Span

_FEWEST_ROWS = 5  # an axis with fewer is not divided
_aten = torch.ops.aten


class Sample:
    """The operators that a module runs on one sample."""

    def __init__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Trace the module at the shapes of the arguments. Nothing is computed. Raises UsageError."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # PyTorch's export warns about itself
                exported = torch.export.export(module, args, dict(kwargs), strict=False)
                program = exported.run_decompositions(_decompositions())
        except Exception as error:  # the module's own code may raise any
            first = str(error).strip().partition("\n")[0]
            raise UsageError(f"{type(module).__name__} cannot be traced for one sample: {first}") from error
        self.module, self._program = module, program
        self._specs = program.call_spec.in_spec, program.call_spec.out_spec
        self._names, self.spelled = tuple(kwargs), spell_inputs((*args, *kwargs.values()))
        signature, graph = program.graph_signature, program.graph
        _refuse(program, module)
        _simplify(graph)
        placeholders = {node.name: node for node in graph.nodes if node.op == "placeholder"}
        self._state = {
            placeholders[name]: target
            for kind in (signature.inputs_to_parameters, signature.inputs_to_buffers)
            for name, target in kind.items()
        }
        self._constants = {
            placeholders[name]: program.constants[target]
            for name, target in signature.inputs_to_lifted_tensor_constants.items()
        }
        self._inputs = [placeholders.get(name) for name in signature.user_inputs]
        self.inputs = [node for node in self._inputs if node is not None and node.users]
        if not self.inputs:
            raise UsageError(f"{type(module).__name__} computes nothing from tensors of the example")
        self.device = self.inputs[0].meta["val"].device
        [output] = [node for node in graph.nodes if node.op == "output"]
        self._outputs = list(output.args[0])
        self._read(graph)
        self.digest = digest((node.name, node.target, shape_of(node)) for node in self.order)

    def _read(self, graph: Graph) -> None:
        depends = set(self.inputs)
        self.order: list[Node] = list(self.inputs)
        self.fixed: list[Node] = []  # operators on parameters alone
        self.axes: dict[Node, set[int]] = {}
        self.statistics: dict[Node, Statistic] = {}
        self.whole: dict[Node, str] = {}  # operators that run whole, and their modules
        self.stored: set[Node] = set()  # tensors that an operator reads whole
        for node in self.inputs:
            shape = shape_of(node)
            self.axes[node] = {axis for axis in range(2, len(shape)) if shape[axis] >= _FEWEST_ROWS}
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            if not any(each in depends for each in node.all_input_nodes):
                self.fixed.append(node)
                continue
            depends.add(node)
            self.order.append(node)
            self._classify(node)
        self.place = {node: place for place, node in enumerate(self.order)}
        self.outputs = list(
            dict.fromkeys(n for n in self._outputs if isinstance(n, Node) and n in self.place)
        )
        self.last_use = {
            node: max((self.place[user] for user in node.users if user in self.place), default=-1)
            for node in self.order
        } | dict.fromkeys(self.outputs, len(self.order))
        self.means = {node for node, each in self.statistics.items() if isinstance(each, Mean)}
        self.statistics_of: dict[Node, list[Statistic]] = {}
        for each in self.statistics.values():
            self.statistics_of.setdefault(each.x, []).append(each)

    def _classify(self, node: Node) -> None:
        """Find the axes along which a result can be divided, and the inputs that parts of it read whole."""
        inputs = [each for each in node.all_input_nodes if each in self.axes]
        statistic = statistic_of(node, self.axes)
        if statistic is not None:
            self.statistics[node] = statistic
            if not isinstance(statistic, Mean):
                self.axes[statistic.x] -= {0, 1}  # a tile has all samples and channels
            self.axes[node] = set() if isinstance(statistic, Mean) else set(self.axes[statistic.x])
            return
        every = all_of(node)
        full = dict(step(node, every).inputs)
        axes = set[int]()
        for axis, span in enumerate(every):
            if span.size >= _FEWEST_ROWS and has_rule(node):
                for each, box in step(node, (*every[:axis], _middle(span), *every[axis + 1 :])).inputs:
                    if each in self.axes and any(box[a].size < full[each][a].size for a in self.axes[each]):
                        axes.add(axis)
        self.axes[node] = axes
        if not has_rule(node) and any(self.axes[each] for each in inputs):
            self.whole[node] = f"{node.target} in {module_of(node) or 'the model'}"
        box = tuple(_middle(span) if axis in axes else span for axis, span in enumerate(every))
        # A view reads all rows behind a divided axis.
        is_view = node.target in (_aten.view.default, _aten._unsafe_view.default) and bool(axes)
        for each, need in step(node, box).inputs:
            if each in inputs and not is_view:
                shape = shape_of(each)
                if any(shape[a] > 8 and need[a].size == shape[a] for a in self.axes[each]):
                    self.stored.add(each)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Node, Tensor]:
        """Return the tensors of a call by their nodes. Raises UsageError for other shapes."""
        kwargs = {name: kwargs[name] for name in self._names if name in kwargs} | dict(kwargs)
        flat, spec = tree_flatten((args, dict(kwargs)))
        if spec != self._specs[0]:
            raise UsageError("the arguments are not built as those that the module was traced with")
        found = dict[Node, Tensor]()
        for node, value in zip(self._inputs, flat, strict=True):
            if node is None or not isinstance(value, Tensor):
                continue
            expected = node.meta["val"]
            if value.shape != expected.shape or value.dtype != expected.dtype:
                raise UsageError(
                    f"{node.name} is {value.dtype} of shape {tuple(value.shape)}, but the module was traced "
                    f"with {expected.dtype} of shape {tuple(expected.shape)}"
                )
            found[node] = value
        return found

    def state(self) -> dict[Node, Tensor]:
        """Return the values that do not depend on the sample, with autograd's graph if it records."""
        values: dict[Node, Tensor] = dict(self._constants)
        for node, name in self._state.items():
            values[node] = operator.attrgetter(name)(self.module)
        for node in self.fixed:
            arguments = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            result = node.target(*arguments[0], **arguments[1])
            values[node] = result[0] if isinstance(result, tuple | list) else result
        return values

    def result(self, values: Mapping[Node, Tensor]) -> Any:
        """Return the module's result from the values of its output nodes."""
        flat = [values[each] if isinstance(each, Node) else each for each in self._outputs]
        return tree_unflatten(flat, self._specs[1])


def _middle(span: Span) -> Span:
    return Span(span.size // 2, span.size // 2 + max(span.size // 4, 1))


def module_of(node: Node) -> str:
    """Return the name of the module that called a node."""
    stack = node.meta.get("nn_module_stack") or {}
    return next((name for name, _ in reversed(list(stack.values()))), "")


def _refuse(program: Any, module: nn.Module) -> None:
    """Refuse what a run in tiles would change: state, random numbers, and regions without gradients."""
    signature = program.graph_signature
    for name in signature.buffers_to_mutate.values():
        owner = name.rpartition(".")[0]
        kind = type(module.get_submodule(owner)).__name__
        raise UsageError(
            f"{owner or 'the model'} ({kind}) changes its buffer {name.rpartition('.')[2]}: call eval(), or "
            "give the module in a mode that does not change it"
        )
    for name in signature.user_inputs_to_mutate.values():
        raise UsageError(f"the module changes its input {name}: a tile must leave its input as it is")
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        where = f"{module_of(node) or 'the model'} runs {node.target}"
        if not isinstance(node.target, torch._ops.OpOverload):
            raise UsageError(f"{where}, which cannot be run in tiles")
        if torch.Tag.nondeterministic_seeded in node.target.tags and not _is_still(node):
            raise UsageError(f"{where}, whose random numbers would differ in tiles: call eval()")


def _is_still(node: Node) -> bool:
    """Return whether an operator that may draw random numbers draws none."""
    given = arguments(node)
    return given.get("train") is False or given.get("dropout_p") == 0


def _decompositions() -> dict[Any, Any]:
    """Return how to write operators by those that have rules."""
    names = (_aten.unbind.int, _aten.stack, _aten.addmm, _aten.t, _aten.pixel_shuffle, _aten.pixel_unshuffle)
    parts = (_aten.split.Tensor, _aten.split_with_sizes.default, _aten.split.sizes)
    return {
        **get_decompositions(names),
        **dict.fromkeys(parts, _split),
        _aten.chunk.default: _aten.chunk.default.decompose,
        _aten.type_as.default: lambda x, other: _aten._to_copy.default(x, dtype=other.dtype),
    }


def _split(x: Tensor, size: int | Sequence[int], dim: int = 0) -> list[Tensor]:
    """Return what torch.split does, computed by slices."""
    ends = range(size, x.size(dim) + size, size) if isinstance(size, int) else accumulate(size)
    return [_aten.slice.Tensor(x, dim, lo, hi) for lo, hi in pairwise((0, *ends))]


def _simplify(graph: Graph) -> None:
    """Remove assertions, and let a node with several results stand for its first."""
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target).startswith("aten._assert"):
            graph.erase_node(node)
        if node.op != "call_function" or node.target is not operator.getitem:
            continue
        source, index = node.args
        if index == 0:
            node.replace_all_uses_with(source)
        elif node.users:
            raise UsageError(f"{module_of(source)} uses result {index} of {source.target}, which has no rule")
        graph.erase_node(node)
    graph.eliminate_dead_code()
    for node in graph.nodes:
        value = node.meta.get("val")
        node.meta["val"] = value[0] if isinstance(value, tuple | list) else value

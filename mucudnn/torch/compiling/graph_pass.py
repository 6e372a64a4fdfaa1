"""The pass over Inductor's graph that gives the engine the convolutions for which it was measured faster.

Inductor runs it after freezing has folded batch norms and packed filters, and before it fuses. It runs once
for the forward and once for the backward graph of a training step.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from mucudnn.sizes import spell_limit
from mucudnn.torch.compiling import inductor, unknown_sizes
from mucudnn.torch.compiling.comparison import Packed, choose, digest_of_choices
from mucudnn.torch.compiling.operators import OPERATORS, CompiledCall, EngineChoice, stride_orders

_logger = logging.getLogger("mucudnn")
_aten = torch.ops.aten
_RESULTS = ("backward_data", "backward_filter")  # the first two results of `aten.convolution_backward`
_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
# The traces of all convolutions that converted modules call, and of their gradients, name this file.
_CONVERTED = str(Path(__file__).parents[1] / "layers" / "converted.py")
# Read at import, because the files of a running process may be replaced.
_CODE = inductor.hash_files(tuple(map(str, sorted(Path(__file__).parent.glob("*.py")))))


def set_pass() -> None:
    """Let Inductor run the pass, after the user's own."""
    inductor.keep_scatters_before_readers()
    before = inductor.passes_before()
    if not any(isinstance(each, Swap) for each in before):
        for own in (OPERATORS, unknown_sizes.OPERATORS):
            for pass_, operator in own.items():
                inductor.require_stride_orders(operator, partial(stride_orders, pass_))
        inductor.set_pass(Swap(before))


class Swap(inductor.GraphPass):
    """A pass that runs the user's passes and then gives convolutions to the engine."""

    def __init__(self, before: Sequence[Any]) -> None:
        self._before = before

    def uuid(self) -> Any:
        """Return what the graphs depend on, for Inductor's cache of them; None if a pass of the user does."""
        identities = []
        for each in self._before:
            identity = each.uuid() if hasattr(each, "uuid") else None
            if not identity:
                return None
            identities.append(identity)
        limits = self._limits()
        own = (_CODE, digest_of_choices()) if limits else ()
        return repr((identities, sorted(map(str, limits)), own)).encode()

    def __call__(self, graph: fx.Graph, is_inference: bool | None = None) -> None:
        """Swap the convolutions of converted modules for which the engine is faster."""
        for each in self._before:
            if inductor.wants_inference(each):
                each(graph, is_inference=is_inference)
            else:
                each(graph)
        limits = self._limits()
        if not limits or inductor.is_ahead_of_time():
            return
        limit = min((size for size in limits if size is not None), default=None)
        counts = _Graph(graph, spell_limit(limit)).swap()
        if counts:
            _logger.info("torch.compile: %s", ", ".join(f"{n} {text}" for text, n in sorted(counts.items())))

    def _limits(self) -> list[int | None]:
        trace = inductor.present_trace()
        return [] if trace is None else inductor.limits_of_traces.get(trace, [])


class _Graph:
    """A graph in which convolutions are swapped, with the number of those that the engine got."""

    def __init__(self, graph: fx.Graph, workspace: str) -> None:
        self._graph, self._module = graph, graph.owning_module
        self._workspace = workspace
        self._counts: Counter[str] = Counter()

    def swap(self) -> Counter[str]:
        """Swap convolutions. Return how many of each pass went to the engine and stayed Inductor's."""
        for node in list(self._graph.nodes):
            if node.op != "call_function" or _CONVERTED not in (node.stack_trace or ""):
                continue
            if inductor.is_packed_convolution(node):
                self._swap_packed(node)
            elif node.target is _aten.convolution.default and not node.args[6]:
                x, w, bias, stride, padding, dilation, _, _, groups = node.args
                if way := self._operator_for("forward", x, w, stride, padding, dilation, groups):
                    self._replace(node, node, way[0], (x, w, bias, *way[1]))
            elif node.target is _aten.convolution_backward.default:
                self._swap_backward(node)
        return self._counts

    def _swap_packed(self, node: fx.Node) -> None:
        x, packed, bias, padding, stride, dilation, groups, *_ = node.args
        if packed.op != "get_attr":
            return
        opaque, x_shape = getattr(self._module, packed.target), inductor.known_shape(x)
        if x_shape is None:
            self._counts["forward convolutions of unknown shape left to Inductor"] += 1
            return
        shape = (_shape(node)[1], x_shape[1] // groups, *opaque.shape[-(len(x_shape) - 2) :])
        call = self._call("forward", x, shape, stride, padding, dilation, groups, constant_filter=True)
        if call is None:
            return
        call = call._replace(x=x_shape)
        w = opaque.to_dense().reshape(shape)
        if call.channels_last:
            w = w.contiguous(memory_format=torch.channels_last if w.dim() == 4 else torch.channels_last_3d)
        values = None if bias is None else getattr(self._module, bias.target, None)

        def run_stock(real: Tensor, sum_: Tensor | None) -> Tensor:
            sizes = padding, stride, dilation, groups
            result: Tensor = inductor.run_packed(real, opaque, values, sizes, sum_)
            return result

        choice = self._choose(call, Packed(run_stock, w, _is_added(node)))
        if choice is None:
            return
        name = f"{packed.target}_mucudnn"
        self._module.register_buffer(name, w)
        with self._graph.inserting_before(node):
            own = self._graph.get_attr(name)
        own.meta["val"] = node.meta["val"].fake_mode.from_tensor(w, static_shapes=True)
        arguments = x, own, bias, *_common_arguments(call)
        if _is_static(x):
            self._replace(node, node, OPERATORS["forward"], (*arguments, *choice))
        else:
            unknown_sizes.note_choice(call, choice)
            self._replace(node, node, unknown_sizes.OPERATORS["forward"], arguments)
        if not packed.users:
            self._graph.erase_node(packed)
            if not any(n.op == "get_attr" and n.target == packed.target for n in self._graph.nodes):
                delattr(self._module, packed.target)

    def _swap_backward(self, node: fx.Node) -> None:
        dy, x, w, _, stride, padding, dilation, transposed, _, groups, mask = node.args
        if transposed:
            return
        results = {user.args[1]: user for user in node.users}
        mask, operands = list(mask), {"backward_data": (dy, w), "backward_filter": (x, dy)}
        for index, pass_ in enumerate(_RESULTS):
            if not mask[index]:
                continue
            way = self._operator_for(pass_, x, w, stride, padding, dilation, groups)
            if way is None:
                continue
            mask[index] = False
            if index in results:
                operator, tail = way
                shape = self._sizes(node, x if pass_ == "backward_data" else w)
                self._replace(node, results[index], operator, (*operands[pass_], shape, *tail))
        if mask == list(node.args[-1]):
            return
        if mask[2] and not any(mask[:2]):  # Inductor fuses the sum with what computes dy
            mask[2] = False
            if 2 in results:
                axes = [0, *range(2, len(_shape(dy)))]
                self._replace(node, results[2], _aten.sum.dim_IntList, (dy, axes))
        if any(mask):
            node.args = (*node.args[:-1], mask)
        else:
            self._graph.erase_node(node)

    def _operator_for(
        self, pass_: str, x: fx.Node, w: fx.Node, *sizes: Any
    ) -> tuple[Any, tuple[Any, ...]] | None:
        """Return the operator that is to run a pass, and its arguments after the tensors.

        Return None to leave the pass to Inductor.
        """
        call = self._call(pass_, x, _shape(w), *sizes)
        if call is None:
            return None
        if not _is_static(x, w):
            self._counts[f"{pass_} convolutions decided when they run"] += 1
            return unknown_sizes.OPERATORS[pass_], _common_arguments(call)
        choice = self._choose(call, None)
        return None if choice is None else (OPERATORS[pass_], (*_common_arguments(call), *choice))

    def _sizes(self, node: fx.Node, tensor: fx.Node) -> list[Any]:
        """Return the sizes of a tensor before a node: numbers, and nodes for those that are not known."""
        sizes = list[Any](_shape(tensor))
        with self._graph.inserting_before(node):
            for axis, size in enumerate(sizes):
                if type(size) is not int:
                    sizes[axis] = self._graph.call_function(_aten.sym_size.int, (tensor, axis))
                    sizes[axis].meta["val"] = size
        return sizes

    def _call(
        self, pass_: str, x: fx.Node, w: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: int,
        *, constant_filter: bool = False,
    ) -> CompiledCall | None:  # fmt: skip
        value = x.meta["val"]
        if value.dtype not in _TYPES or value.device.type != "cpu":
            return None
        sizes = tuple(stride), tuple(padding), tuple(dilation)
        return CompiledCall(
            pass_,
            tuple(value.shape),
            tuple(w),
            value.dtype,
            *sizes,
            groups,
            self._is_channels_last(x, constant_filter),
            self._workspace,
            constant_filter,
        )

    def _is_channels_last(self, x: fx.Node, constant_filter: bool) -> bool:
        """Return whether the engine runs a convolution of x channels last.

        Inductor gives convolutions of images channels last on the CPU, unless their shape is dynamic and
        their filter is not packed. It leaves others as they are.
        """
        value = x.meta["val"]
        if value.dim() == 4 and constant_filter:
            return not self._has_group_norm
        return (value.dim() == 4 and _is_static(x)) or (
            value.dim() in _CHANNELS_LAST
            and not value.is_contiguous()
            and value.is_contiguous(memory_format=_CHANNELS_LAST[value.dim()])
        )

    @cached_property
    def _has_group_norm(self) -> bool:
        """True if a group norm reads an image, which takes Inductor many times as long channels last."""
        return any(
            node.target is _aten.var_mean.correction
            and len(_shape(node.args[0])) == 4
            and node.args[1] == [2, 3]
            for node in self._graph.nodes
        )

    def _choose(self, call: CompiledCall, packed: Packed | None) -> EngineChoice | None:
        choice = choose(call, packed)
        where = "left to Inductor" if choice is None else "run by mucudnn"
        self._counts[f"{call.pass_} convolutions {where}"] += 1
        return choice

    def _replace(self, node: fx.Node, result: fx.Node, target: Any, arguments: tuple[Any, ...]) -> None:
        with self._graph.inserting_before(node):
            new = self._graph.call_function(target, arguments)
        new.meta.update(result.meta)
        result.replace_all_uses_with(new)
        self._graph.erase_node(result)


def _common_arguments(call: CompiledCall) -> tuple[Any, ...]:
    sizes = [list(size) for size in (call.stride, call.padding, call.dilation)]
    return *sizes, call.groups, call.channels_last, call.workspace, call.constant_filter


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _is_added(node: fx.Node) -> bool:
    """Return whether the one use of a node's result is an addition to a tensor of the same shape."""
    users = list(node.users)
    return (
        len(users) == 1
        and users[0].target is _aten.add.Tensor
        and all(
            isinstance(term, fx.Node) and inductor.known_shape(term) == inductor.known_shape(node)
            for term in users[0].args
        )
    )


def _is_static(*nodes: fx.Node) -> bool:
    """Return whether all sizes are numbers."""
    return all(type(size) is int for node in nodes for size in node.meta["val"].shape)

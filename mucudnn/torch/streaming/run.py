"""Run the passes of a sample, and their gradients."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from mucudnn.plans.stream_plan import StreamPlan
from mucudnn.torch.streaming.graph import Sample
from mucudnn.torch.streaming.nodes import all_of, shape_of
from mucudnn.torch.streaming.passes import Pass, Passes
from mucudnn.torch.streaming.statistics import Mean, Norm, Statistic, Sums, Value
from mucudnn.torch.windows.boxes import Box, crop

Store = Callable[[Node], Tensor]
# The tensors that autograd follows in a tile: boxes of stored tensors by node, and values by statistic.
Leaves = dict[Any, Any]


def make_store(sample: Sample, place: str, device: torch.device) -> Store:
    """Return the function that makes the memory of a stored tensor: on the device, the host or the disk."""

    def make(node: Node) -> Tensor:
        shape, dtype = shape_of(node), node.meta["val"].dtype
        if place == "device" or node in sample.outputs:
            return torch.empty(shape, dtype=dtype, device=device)
        if place == "host":
            return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")
        elements = node.meta["val"].numel()
        with tempfile.NamedTemporaryFile(prefix="mucudnn") as file:  # the mapping outlives the name
            return torch.from_file(file.name, shared=True, size=elements, dtype=dtype).reshape(shape)

    return make


class Run:
    """One run of a module in tiles: its stored tensors, and the statistics of the whole sample."""

    def __init__(self, sample: Sample, plan: StreamPlan, device: torch.device) -> None:
        self.sample, self._store, self._device = sample, make_store(sample, plan.store, device), device
        self._passes = Passes(sample, [node for node in sample.order if node.name in plan.again])
        self._planned = self._passes.planned(plan)
        self.stored: dict[Node, Tensor] = {}
        self.values: dict[Statistic, Value] = {}

    def forward(self, inputs: Mapping[Node, Tensor], *, keep: bool) -> dict[Node, Tensor]:
        """Return the values of the output nodes. `keep` keeps all stored tensors, for gradients."""
        constants = self.sample.state()
        stored = dict(inputs)
        for each in self._planned:
            if not keep:
                stored = {node: value for node, value in stored.items() if node in each.have}
            for node in each.stored:
                stored[node] = self._store(node)
            sums = {statistic: Sums() for statistic in each.statistics}
            for box in self._passes.grid(each.sinks[0], each.tiles):
                for node, tile in self._tile(each, box, stored, constants, None).items():
                    for statistic in self.sample.statistics_of.get(node, ()):
                        if statistic in sums:
                            statistic.add(sums[statistic], tile)
                    if node in each.stored:
                        crop(stored[node], all_of(node), self._passes.widened(node, box)).copy_(tile)
                    del tile
            self.values |= {statistic: statistic.finish(its) for statistic, its in sums.items()}
        self.stored = stored
        means = self.sample.means
        return {
            n: self.values[self.sample.statistics[n]][0] if n in means else stored[n]
            for n in self.sample.outputs
        }

    def _tile(
        self,
        of: Pass,
        box: Box,
        stored: Mapping[Node, Tensor],
        constants: Mapping[Node, Tensor],
        leaves: Leaves | None,
    ) -> dict[Node, Tensor]:
        """Return a tile of each sink. With `leaves`, note there what autograd is to follow."""
        demand, values = self._passes.demand(of, box), dict[Node, Tensor]()
        for node in of.sources:
            if node in demand.boxes:
                statistic = self.sample.statistics.get(node)
                whole = self.values[statistic][0] if isinstance(statistic, Mean) else stored[node]
                values[node] = crop(whole, all_of(node), demand.boxes[node]).to(
                    self._device, non_blocking=True
                )
                if leaves is not None and values[node].is_floating_point():
                    values[node] = leaves[node] = values[node].detach().requires_grad_()
        for node, its in demand.steps.items():
            tiles = [
                crop(values[each], demand.boxes[each], wanted)
                if each in values
                else crop(constants[each], all_of(each), wanted)
                for each, wanted in its.inputs
            ]
            for each, _ in its.inputs:
                if demand.last_use[each] is node and each not in of.sinks:
                    values.pop(each, None)
            statistic = self.sample.statistics.get(node)
            if isinstance(statistic, Norm):
                value = self.values[statistic]
                if leaves is not None:
                    value = leaves.setdefault(statistic, tuple(v.detach().requires_grad_() for v in value))
                result = statistic.apply(value, *tiles)
            else:
                options = {"workspace": of.workspace, "choice": "fixed"} if its.problem else {}
                result = its.run(*tiles, **options)
            del tiles
            values[node] = crop(result, its.box or demand.boxes[node], demand.boxes[node])
            del result
        return {
            node: crop(values[node], demand.boxes[node], self._passes.widened(node, box)) for node in of.sinks
        }

    def backward(self, gradients: Mapping[Node, Tensor]) -> tuple[dict[Node, Tensor], dict[Node, Tensor]]:
        """Return the gradients of the inputs and of the values of `Sample.state`.

        Each tile is computed again under autograd, from the last pass to the first. Gradients of stored
        tensors add up in whole tensors, and those of statistics in vectors.
        """
        sample = self.sample
        with torch.enable_grad():  # to see which values need gradients
            live = sample.state()
        constants = {node: value.detach().requires_grad_(value.requires_grad) for node, value in live.items()}
        del live
        learned = [each for each in constants.values() if each.requires_grad]
        whole, of_values = dict(gradients), dict[Statistic, list[Tensor]]()
        for node in [node for node in gradients if node in sample.means]:
            of_values[sample.statistics[node]] = [whole.pop(node)]
        for each in reversed(self._planned):
            for box in self._passes.grid(each.sinks[0], each.tiles):
                leaves: Leaves = {}
                with torch.enable_grad():
                    tiles = self._tile(each, box, self.stored, constants, leaves)
                results, grads = list[Tensor](), list[Tensor]()
                for node, tile in tiles.items():
                    parts = [
                        s.spread(tile.detach(), self.values[s], tuple(of_values[s]))
                        for s in each.statistics if s.x is node and s in of_values
                    ]  # fmt: skip
                    if node in whole and node in each.stored:
                        parts.append(
                            crop(whole[node], all_of(node), self._passes.widened(node, box)).to(tile.device)
                        )
                    if parts and tile.requires_grad:
                        results.append(tile)
                        grads.append(sum(parts[1:], parts[0]))
                del tiles
                flat = [v for leaf in leaves.values() for v in (leaf if isinstance(leaf, tuple) else (leaf,))]
                if results and (flat or learned):
                    torch.autograd.backward(results, grads, inputs=flat + learned)
                self._collect(each, box, leaves, whole, of_values)
            for node in each.stored:  # all that reads it has run
                whole.pop(node, None)
                self.stored.pop(node, None)
        found = {node: value.grad for node, value in constants.items() if value.grad is not None}
        return {node: whole[node] for node in sample.inputs if node in whole}, found

    def _collect(
        self,
        of: Pass,
        box: Box,
        leaves: Leaves,
        whole: dict[Node, Tensor],
        of_values: dict[Statistic, list[Tensor]],
    ) -> None:
        """Add the gradients of a tile's leaves to those of stored tensors and statistics."""
        boxes = self._passes.demand(of, box).boxes
        for key, leaf in leaves.items():
            statistic = self.sample.statistics[key] if key in self.sample.means else key
            if isinstance(statistic, Mean | Norm):
                own = leaf if isinstance(leaf, tuple) else (leaf,)
                got = [torch.zeros_like(each) if each.grad is None else each.grad for each in own]
                before = of_values.get(statistic, [torch.zeros_like(each) for each in got])
                of_values[statistic] = [a + b for a, b in zip(before, got, strict=True)]
            elif leaf.grad is not None:
                if key not in whole:
                    is_input = key in self.sample.inputs
                    whole[key] = torch.zeros_like(self.stored[key]) if is_input else self._store(key).zero_()
                crop(whole[key], all_of(key), boxes[key]).add_(leaf.grad.to(whole[key].device))


class Following(torch.autograd.Function):
    """A run whose gradients are computed in tiles, too. The stored tensors stay until the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, run: Run, nodes: Sequence[Node], learned: Sequence[nn.Parameter], *tensors: Tensor
    ) -> Any:
        """Return the values of the output nodes."""
        found = run.forward(dict(zip(nodes, tensors, strict=False)), keep=True)
        ctx.run, ctx.nodes, ctx.learned = run, nodes, learned
        # Autograd then refuses tensors that are changed before the backward pass, and a second backward pass.
        ctx.save_for_backward(*tensors)
        return tuple(found[node].clone() if node in nodes else found[node] for node in run.sample.outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Return the gradients of the inputs and the parameters. Raises RuntimeError the second time."""
        _, sample = ctx.saved_tensors, ctx.run.sample
        if not ctx.run.stored:
            raise RuntimeError("the backward pass of a run in tiles can run once: it frees what it reads")
        of_inputs, of_state = ctx.run.backward(dict(zip(sample.outputs, gradients, strict=True)))
        with torch.enable_grad():
            state = {node: value for node, value in sample.state().items() if node in of_state}
        found: Sequence[Tensor | None] = [None] * len(ctx.learned)
        if state:
            given = [of_state[node] for node in state]
            found = torch.autograd.grad([*state.values()], ctx.learned, given, allow_unused=True)
        return (None, None, None, *(of_inputs.get(node) for node in ctx.nodes), *found)

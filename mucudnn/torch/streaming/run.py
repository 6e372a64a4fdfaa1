"""Run the passes of a sample, and their gradients."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from mucudnn.plans.stream_plan import StreamPlan
from mucudnn.torch.streaming.copies import Copies, Parts
from mucudnn.torch.streaming.graph import Sample
from mucudnn.torch.streaming.nodes import all_of, shape_of
from mucudnn.torch.streaming.passes import Demand, Pass, Passes
from mucudnn.torch.streaming.statistics import Mean, Norm, Statistic
from mucudnn.torch.windows.boxes import crop

# The tensors that autograd follows in a tile: boxes of stored tensors by node, and values by statistic.
Leaves = dict[Any, Tensor]


class Run:
    """One run of a module in tiles: its stored tensors, and the statistics of the whole sample."""

    def __init__(self, sample: Sample, plan: StreamPlan) -> None:
        self.sample, self._place, self._copies = sample, plan.store, Copies(sample.device)
        self._passes = Passes(sample, [node for node in sample.order if node.name in plan.again])
        self.planned = self._passes.planned(plan)
        self.stored: dict[Node, Tensor] = {}
        self.values: dict[Statistic, Tensor] = {}

    def _store(self, node: Node) -> Tensor:
        """Return the memory of a stored tensor: on the device, the host or the disk."""
        shape, dtype = shape_of(node), node.meta["val"].dtype
        if self._place == "device" or node in self.sample.outputs:
            return torch.empty(shape, dtype=dtype, device=self.sample.device)
        if self._place == "host":
            return torch.empty(shape, dtype=dtype, pin_memory=self.sample.device.type == "cuda")
        elements = node.meta["val"].numel()
        with tempfile.NamedTemporaryFile(prefix="mucudnn") as file:  # the mapping outlives the name
            return torch.from_file(file.name, shared=True, size=elements, dtype=dtype).reshape(shape)

    def forward(self, inputs: Mapping[Node, Tensor], *, keep: bool) -> dict[Node, Tensor]:
        """Return the values of the output nodes. `keep` keeps all stored tensors, for gradients."""
        constants = self.sample.state()
        stored = dict(inputs)
        for each in self.planned:
            if not keep:
                kept = each.have | self.sample.means
                stored = {node: value for node, value in stored.items() if node in kept}
            for node in each.stored:
                stored[node] = self._store(node)
            totals = dict[Statistic, Tensor]()
            for demand, loaded in self._loaded(each, stored, {}):
                tiles = self._tile(each, demand, loaded, constants, None)
                self._copies.finish()
                for node, tile in tiles.items():
                    for statistic in each.statistics:
                        if statistic.x is node:
                            totals[statistic] = totals.get(statistic, 0) + statistic.sums_of(tile)
                    if node in each.stored:
                        self._copies.save(Tensor.copy_, self._part(stored, node, demand), tile)
                del loaded, tiles, tile
            self._copies.finish()
            found = {statistic: statistic.finish(total) for statistic, total in totals.items()}
            self.values |= found
            stored |= {each.node: value for each, value in found.items() if isinstance(each, Mean)}
        self.stored = stored
        return {node: stored[node] for node in self.sample.outputs}

    def _part(self, whole: Parts, sink: Node, demand: Demand) -> Tensor:
        """Return the part of a sink's tensor for a tile."""
        return crop(whole[sink], all_of(sink), self._passes.widened(sink, demand.box))

    def _loaded(self, of: Pass, stored: Parts, gradients: Parts) -> Iterator[tuple[Demand, Parts]]:
        """Yield the demand of each tile, and what it reads: its sources, and gradients of stored sinks."""

        def parts_of(demand: Demand) -> Parts:
            own = {node: self._part(gradients, node, demand) for node in of.stored if node in gradients}
            boxes = demand.boxes.items()
            return own | {n: crop(stored[n], all_of(n), box) for n, box in boxes if n in of.sources}

        demands = [self._passes.demand(of, box) for box in self._passes.grid(of.sinks[0], of.tiles)]
        yield from zip(demands, self._copies.loaded(map(parts_of, demands)), strict=True)

    def _tile(
        self,
        of: Pass,
        demand: Demand,
        loaded: Parts,
        constants: Mapping[Node, Tensor],
        leaves: Leaves | None,
    ) -> dict[Node, Tensor]:
        """Return a tile of each sink. With `leaves`, note there what autograd is to follow."""
        values = {node: part for node, part in loaded.items() if node in of.sources}
        if leaves is not None:
            for node in values:
                if values[node].is_floating_point():
                    values[node] = leaves[node] = values[node].detach().requires_grad_()
        values |= constants
        for node, its in demand.steps.items():
            tiles = [
                crop(values[each], demand.boxes.get(each, all_of(each)), wanted)
                for each, wanted in its.inputs
            ]
            for each, _ in its.inputs:
                if demand.last_use[each] is node and each not in of.sinks:
                    values.pop(each, None)
            statistic = self.sample.statistics.get(node)
            if isinstance(statistic, Norm):
                value = self.values[statistic]
                if leaves is not None:
                    value = leaves.setdefault(statistic, value.detach().requires_grad_())
                result = statistic.apply(value, *tiles)
            else:
                result = its.run(*tiles, **({"workspace": of.workspace} if its.problem else {}))
            del tiles
            values[node] = crop(result, its.box or demand.boxes[node], demand.boxes[node])
            del result
        return {
            node: crop(values[node], demand.boxes[node], self._passes.widened(node, demand.box))
            for node in of.sinks
        }

    def backward(self, gradients: Mapping[Node, Tensor]) -> tuple[dict[Node, Tensor], dict[Node, Tensor]]:
        """Return the gradients of the inputs and of the values of `Sample.state`.

        Each tile is computed again under autograd, from the last pass to the first. Gradients of stored
        tensors add up in whole tensors, and those of statistics in vectors.
        """
        sample = self.sample
        with torch.enable_grad():  # to see which values need gradients
            constants = {n: v.detach().requires_grad_(v.requires_grad) for n, v in sample.state().items()}
        learned = [each for each in constants.values() if each.requires_grad]
        whole = {node: each for node, each in gradients.items() if node not in sample.means}
        of_values = {sample.statistics[node]: gradients[node] for node in gradients.keys() - whole}
        while self.planned:
            each = self.planned.pop()
            for demand, loaded in self._loaded(each, self.stored, whole):
                leaves: Leaves = {}
                with torch.enable_grad():
                    tiles = self._tile(each, demand, loaded, constants, leaves)
                results, grads = list[Tensor](), list[Tensor]()
                for node, tile in tiles.items():
                    parts = [
                        s.spread(tile.detach(), self.values[s], of_values[s])
                        for s in each.statistics if s.x is node and s in of_values
                    ]  # fmt: skip
                    if node in each.stored and node in loaded:
                        parts.append(loaded[node])
                    if parts and tile.requires_grad:
                        results.append(tile)
                        grads.append(sum(parts[1:], parts[0]))
                del tiles
                inputs = [*leaves.values(), *learned]
                if results and inputs:
                    torch.autograd.backward(results, grads, inputs=inputs)
                self._copies.finish()
                self._collect(demand, leaves, whole, of_values)
                del loaded
            self._copies.finish()
            for node in each.stored:  # all that reads it has run
                whole.pop(node, None)
                self.stored.pop(node, None)
        found = {node: value.grad for node, value in constants.items() if value.grad is not None}
        return {node: whole[node] for node in sample.inputs if node in whole}, found

    def _collect(self, demand: Demand, leaves: Leaves, whole: Parts, of_values: dict[Any, Tensor]) -> None:
        """Add the gradients of a tile's leaves to those of stored tensors and statistics."""
        for key, leaf in leaves.items():
            if leaf.grad is None:
                continue
            if key in self.sample.means or isinstance(key, Norm):
                statistic = self.sample.statistics.get(key, key)
                of_values[statistic] = of_values.get(statistic, 0) + leaf.grad
            else:
                if key not in whole:
                    is_input = key in self.sample.inputs
                    whole[key] = torch.zeros_like(self.stored[key]) if is_input else self._store(key).zero_()
                self._copies.save(Tensor.add_, crop(whole[key], all_of(key), demand.boxes[key]), leaf.grad)


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
        if not ctx.run.planned:
            raise RuntimeError("the backward pass of a run in tiles can run once: it frees what it reads")
        of_inputs, of_state = ctx.run.backward(dict(zip(sample.outputs, gradients, strict=True)))
        with torch.enable_grad():
            state = {node: value for node, value in sample.state().items() if node in of_state}
        found: Sequence[Tensor | None] = [None] * len(ctx.learned)
        if state:
            given = [of_state[node] for node in state]
            found = torch.autograd.grad([*state.values()], ctx.learned, given, allow_unused=True)
        return (None, None, None, *(of_inputs.get(node) for node in ctx.nodes), *found)

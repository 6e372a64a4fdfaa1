"""Values of the whole sample that are added up over tiles: the statistics of norms, and means.

Sums of values and of squares are fp64, so that neither the number of tiles nor their order changes a result
by more than the rounding of one tile, unless a mean is many thousand times the standard deviation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from mucudnn.torch.streaming.nodes import all_of, shape_of
from mucudnn.torch.streaming.rules import Step, arguments
from mucudnn.torch.windows.boxes import Box


@dataclass(frozen=True, eq=False)
class Mean:
    """A mean or a sum over all divided axes of a tensor."""

    node: Node
    x: Node
    axes: tuple[int, ...]
    divisor: int

    def sums_of(self, tile: Tensor) -> Tensor:
        """Return the sum of a tile over the axes of the mean, in fp64."""
        return tile.sum(self.axes, keepdim=True, dtype=torch.float64)

    def finish(self, total: Tensor) -> Tensor:
        """Return the node's result."""
        return (total / self.divisor).reshape(shape_of(self.node)).to(self.node.meta["val"].dtype)

    def spread(self, tile: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of a tile from that of the value."""
        shape = [1 if axis in self.axes else rows for axis, rows in enumerate(shape_of(self.x))]
        return (gradient.reshape(shape) / self.divisor).expand(tile.shape).to(tile.dtype)


@dataclass(frozen=True, eq=False)
class Norm:
    """A group, instance or layer norm: `groups` of channels of each sample share a mean and a variance."""

    node: Node
    x: Node
    groups: int
    weight: Node | None
    bias: Node | None
    eps: float

    def step(self, box: Box) -> Step:
        """Return how to compute a box of the result, with all channels, by `apply`."""
        every = (*all_of(self.x)[:2], *box[2:])
        vectors = [each for each in (self.weight, self.bias) if each is not None]
        # A layer norm has a weight for each element of a sample, other norms one for each channel.
        inputs = [(each, every[1:] if len(shape_of(each)) > 1 else every[1:2]) for each in vectors]
        return Step([(self.x, every), *inputs], self.apply, every)

    def sums_of(self, tile: Tensor) -> Tensor:
        """Return the sum of a tile's values in each group, and the sum of their squares, in fp64."""
        rows = tile.reshape(tile.size(0) * self.groups, -1)
        groups, count = rows.shape
        # This kernel reads a tile once, and is several times as fast as var_mean on a CPU.
        _, [mean], [scale] = torch.native_group_norm(
            rows[None], None, None, 1, groups, count, groups, self.eps
        )
        mean, variance = mean.double(), scale.double().square().reciprocal() - self.eps
        return count * torch.stack([mean, variance + mean.square()])

    def finish(self, total: Tensor) -> Tensor:
        """Return the means of the groups, and their variances."""
        mean, square = total / self._count
        return torch.stack([mean, (square - mean.square()).clamp_min(0)])

    @property
    def _count(self) -> int:
        """The values of a group."""
        return math.prod(shape_of(self.x)) // (shape_of(self.x)[0] * self.groups)

    def apply(self, value: Tensor, x: Tensor, *vectors: Tensor) -> Tensor:
        """Return a tile normalized."""
        n, c, *rest = x.shape
        dtype = torch.promote_types(x.dtype, torch.float32)

        def for_channels(each: Tensor) -> Tensor:
            each = each.reshape(n, self.groups, 1).expand(n, self.groups, c // self.groups)
            return each.reshape(n, c, *(1,) * len(rest))

        mean, variance = map(for_channels, value)
        own = [each if each.dim() > 1 else each.reshape(-1, *(1,) * len(rest)) for each in vectors]
        scale = (variance + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * own[0]
        shift = -mean * scale if self.bias is None else own[-1] - mean * scale
        return torch.addcmul(shift.to(dtype), x.to(dtype), scale.to(dtype)).to(x.dtype)

    def spread(self, tile: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient of a tile from those of mean and variance."""
        count = self._count
        rows = tile.reshape(tile.size(0) * self.groups, -1)
        mean, of_mean, of_variance = (each[:, None] for each in (value[0], *gradient))
        dtype = torch.promote_types(tile.dtype, torch.float32)
        slope = (2 / count * of_variance).to(dtype)
        level = (of_mean / count - 2 / count * of_variance * mean).to(dtype)
        return torch.addcmul(level, rows.to(dtype), slope).reshape(tile.shape).to(tile.dtype)


Statistic = Mean | Norm


def statistic_of(node: Node, axes: Mapping[Node, set[int]]) -> Statistic | None:
    """Return the statistic that a node needs; `axes` are those along which each node can be divided."""
    name, given, x = node.target._schema.name.removeprefix("aten::"), arguments(node), node.all_input_nodes[0]
    shape, divided = shape_of(x), axes.get(x, set())
    if not divided:
        return None
    vectors: tuple[Any, Any] = given.get("weight"), given.get("bias")
    if name == "group_norm":
        return Norm(node, x, given["num_groups"], *vectors, given["eps"])
    if name == "instance_norm" and given["use_input_stats"]:
        return Norm(node, x, shape[1], *vectors, given["eps"])
    if name == "layer_norm" and len(given["normalized_shape"]) == len(shape) - 1:
        return Norm(node, x, 1, *vectors, given["eps"])
    read = set[int]()
    if name in ("mean", "sum") and "dim" in given:
        read = {axis % len(shape) for axis in given["dim"] or range(len(shape))}
    elif name.startswith("adaptive_avg_pool") and math.prod(given["output_size"]) == 1:
        read = set(range(len(shape) - len(given["output_size"]), len(shape)))
    if divided <= read:
        divisor = 1 if name == "sum" else math.prod(shape[axis] for axis in read)
        return Mean(node, x, tuple(sorted(read)), divisor)
    return None

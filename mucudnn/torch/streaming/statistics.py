"""Values of the whole sample that are added up over tiles: the statistics of norms, and means.

Mean and squared distances of tiles are merged in fp64 (Chan et al., 1979), so that neither the number of
tiles nor their order changes a result by more than the rounding of one tile.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from mucudnn.torch.streaming.nodes import all_of, shape_of
from mucudnn.torch.streaming.rules import arguments
from mucudnn.torch.windows.boxes import Box

Value = tuple[Tensor, ...]  # mean and variance of a norm in fp64; or the result of a mean


@dataclass
class Sums:
    """The sums over those tiles of a sample that have been computed."""

    count: int = 0
    mean: Tensor | None = None
    square: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Mean:
    """A mean or a sum over all divided axes of a tensor."""

    node: Node
    x: Node
    axes: tuple[int, ...]
    divisor: int

    def add(self, sums: Sums, tile: Tensor) -> None:
        """Add a tile."""
        more = tile.sum(self.axes, keepdim=True, dtype=torch.float64)
        sums.mean = more if sums.mean is None else sums.mean + more

    def finish(self, sums: Sums) -> Value:
        """Return the node's result."""
        assert sums.mean is not None
        result = sums.mean / self.divisor
        return (result.reshape(shape_of(self.node)).to(self.node.meta["val"].dtype),)

    def spread(self, tile: Tensor, value: Value, gradients: Value) -> Tensor:
        """Return the gradient of a tile from those of the value."""
        shape = [1 if axis in self.axes else rows for axis, rows in enumerate(shape_of(self.x))]
        return (gradients[0].reshape(shape) / self.divisor).expand(tile.shape).to(tile.dtype)


@dataclass(frozen=True, eq=False)
class Norm:
    """A group, instance or layer norm: `groups` of channels of each sample share a mean and a variance."""

    node: Node
    x: Node
    groups: int
    weight: Node | None
    bias: Node | None
    eps: float

    def inputs(self, box: Box) -> list[tuple[Node, Box]]:
        """Return the inputs of a box of the result: x, and the weight and bias of its elements."""
        channels = all_of(self.x)[1]
        vectors = [each for each in (self.weight, self.bias) if each is not None]
        # A layer norm has a weight for each element of a sample, other norms one for each channel.
        part = (channels,) if not vectors or len(shape_of(vectors[0])) == 1 else (channels, *box[2:])
        return [(self.x, self.box(box)), *((each, part) for each in vectors)]

    def box(self, box: Box) -> Box:
        """Return the box with all channels, which `apply` takes and returns."""
        return (all_of(self.x)[0], all_of(self.x)[1], *box[2:])

    def add(self, sums: Sums, tile: Tensor) -> None:
        """Add a tile."""
        rows = tile.reshape(tile.size(0) * self.groups, -1)
        (groups, count), eps = rows.shape, self.eps
        # This kernel reads a tile once, and is several times as fast as var_mean on a CPU.
        _, [mean], [scale] = torch.native_group_norm(rows[None], None, None, 1, groups, count, groups, eps)
        mean, variance = mean.double(), scale.double().square().reciprocal() - eps
        square = variance.clamp_min(0) * count
        if sums.mean is None or sums.square is None:
            sums.count, sums.mean, sums.square = count, mean, square
            return
        both, distance = sums.count + count, mean - sums.mean
        sums.square = sums.square + square + distance.square() * (sums.count * count / both)
        sums.mean = sums.mean + distance * (count / both)
        sums.count = both

    def finish(self, sums: Sums) -> Value:
        """Return the mean and the variance of each group."""
        assert sums.mean is not None
        assert sums.square is not None
        return sums.mean, sums.square / sums.count

    def apply(self, value: Value, x: Tensor, *vectors: Tensor) -> Tensor:
        """Return a tile normalized."""
        n, c, *rest = x.shape
        dtype = torch.promote_types(x.dtype, torch.float32)

        def for_channels(each: Tensor) -> Tensor:
            each = each.reshape(n, self.groups, 1).expand(n, self.groups, c // self.groups)
            return each.reshape(n, c, *(1,) * len(rest))

        mean, variance = map(for_channels, value)
        scale = (variance + self.eps).rsqrt()
        weight, bias = self._weight_and_bias(vectors, len(rest))
        scale = scale if weight is None else scale * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        return torch.addcmul(shift.to(dtype), x.to(dtype), scale.to(dtype)).to(x.dtype)

    def _weight_and_bias(
        self, vectors: tuple[Tensor, ...], spatial: int
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return weight and bias with the axes of a sample; None for each that the norm lacks."""
        given = iter(vectors)
        found = [None if node is None else next(given) for node in (self.weight, self.bias)]
        ones = (1,) * spatial
        weight, bias = (v if v is None or v.dim() > 1 else v.reshape(-1, *ones) for v in found)
        return weight, bias

    def spread(self, tile: Tensor, value: Value, gradients: Value) -> Tensor:
        """Return the gradient of a tile from those of mean and variance."""
        count = math.prod(shape_of(self.x)) // (shape_of(self.x)[0] * self.groups)
        rows = tile.reshape(tile.size(0) * self.groups, -1)
        mean, of_mean, of_variance = (each[:, None] for each in (value[0], *gradients))
        dtype = torch.promote_types(tile.dtype, torch.float32)
        slope = (2 / count * of_variance).to(dtype)
        level = (of_mean / count - 2 / count * of_variance * mean).to(dtype)
        return torch.addcmul(level, rows.to(dtype), slope).reshape(tile.shape).to(tile.dtype)


Statistic = Mean | Norm


def statistic_of(node: Node, divided: set[int]) -> Statistic | None:
    """Return the statistic that a node needs, whose first input can be divided along some axes."""
    name = getattr(getattr(node.target, "_schema", None), "name", "").removeprefix("aten::")
    if not divided or not node.args or not isinstance(node.args[0], Node):
        return None
    given, x = arguments(node), node.args[0]
    shape = shape_of(x)
    vectors: tuple[Any, Any] = given.get("weight"), given.get("bias")
    if name == "group_norm":
        return Norm(node, x, given["num_groups"], *vectors, given["eps"])
    if name == "instance_norm" and given["use_input_stats"]:
        return Norm(node, x, shape[1], *vectors, given["eps"])
    if name == "layer_norm" and len(given["normalized_shape"]) == len(shape) - 1:
        return Norm(node, x, 1, *vectors, given["eps"])
    axes: set[int] = set()
    if name in ("mean", "sum") and "dim" in given:
        axes = {axis % len(shape) for axis in given["dim"] or range(len(shape))}
    elif name.startswith("adaptive_avg_pool") and math.prod(given["output_size"]) == 1:
        axes = set(range(len(shape) - len(given["output_size"]), len(shape)))
    if divided <= axes:
        divisor = 1 if name == "sum" else math.prod(shape[axis] for axis in axes)
        return Mean(node, x, tuple(sorted(axes)), divisor)
    return None

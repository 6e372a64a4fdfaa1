"""A builder of forward networks, layer by layer, with the tensors that PyTorch saves for each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mucudnn._native import Problem
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.problems.steps import Step, Tensor


class Layers:
    """The tensors and steps of a network so far. Each layer reads a tensor and returns its result.

    All activations have one data type. Shapes are (N, C, spatial sizes). With `pools_by_indices` a max
    pooling saves the i64 indices of the maxima, as in PyTorch; otherwise its result, as in cuDNN.
    """

    def __init__(
        self, *shape: int, data_type: str = "f32", layout: str = "nchw", pools_by_indices: bool = True
    ) -> None:
        self._data_type, self._layout, self._pools_by_indices = data_type, layout, pools_by_indices
        self.input = Tensor("input", shape, data_type, "input")
        self._tensors = [self.input]
        self._steps: list[Step] = []

    def convolution(
        self,
        name: str,
        x: Tensor,
        channels: int,
        size: int,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> Tensor:
        """Add a convolution."""
        problem = Problem(
            mini_batch=x.shape[0],
            in_channels=x.shape[1],
            out_channels=channels,
            input=x.shape[2:],
            kernel=[size] * len(x.shape[2:]),
            stride=stride,
            padding=padding,
            groups=groups,
            data_type=self._data_type,
            layout=self._layout,
        )
        weight = self._parameter(f"{name}.weight", (channels, x.shape[1] // groups, *problem.kernel))
        reads = [x, weight]
        if bias:
            reads.append(self._parameter(f"{name}.bias", (channels,)))
        shape, kernels = (x.shape[0], channels, *problem.output), (Kernel(problem, "forward"),)
        return self._add(name, shape, reads, (x.name, weight.name), kernels=kernels)

    def up_convolution(self, name: str, x: Tensor, channels: int) -> Tensor:
        """Add a transposed convolution that doubles each spatial size. It counts as a product of matrices."""
        dims = len(x.shape) - 2
        weight = self._parameter(f"{name}.weight", (x.shape[1], channels, *[2] * dims))
        bias = self._parameter(f"{name}.bias", (channels,))
        shape = (x.shape[0], channels, *(2 * n for n in x.shape[2:]))
        flops = 2 * x.shape[1] * math.prod(shape)
        return self._add(name, shape, (x, weight, bias), (x.name, weight.name), flops=flops)

    def linear(self, name: str, x: Tensor, features: int, *, last_axis: bool = False) -> Tensor:
        """Add a linear layer on all axes but the first, or only on the last axis."""
        inputs = x.shape[-1] if last_axis else math.prod(x.shape[1:])
        weight = self._parameter(f"{name}.weight", (features, inputs))
        bias = self._parameter(f"{name}.bias", (features,))
        shape = (*x.shape[:-1], features) if last_axis else (x.shape[0], features)
        flops = 2 * math.prod(shape) * inputs
        return self._add(name, shape, (x, weight, bias), (x.name, weight.name), flops=flops)

    def relu(self, name: str, x: Tensor) -> Tensor:
        """Add a ReLU in place: its result takes the memory of its input."""
        return self._add(name, x.shape, (x,), (name,), in_place_of=x.name)

    def gelu(self, name: str, x: Tensor) -> Tensor:
        """Add a GELU, which saves its input."""
        return self._add(name, x.shape, (x,), (x.name,))

    def norm(self, name: str, x: Tensor, *, channels: int | None = None) -> Tensor:
        """Add a batch norm, or a layer norm over the last axis; it saves its input."""
        count = x.shape[1] if channels is None else channels
        weight = self._parameter(f"{name}.weight", (count,))
        bias = self._parameter(f"{name}.bias", (count,))
        return self._add(name, x.shape, (x, weight, bias), (x.name, weight.name))

    def response_norm(self, name: str, x: Tensor) -> Tensor:
        """Add a local response normalization, which saves its input and its result."""
        return self._add(name, x.shape, (x,), (x.name, name))

    def max_pool(
        self, name: str, x: Tensor, size: int, stride: int, *, padding: int = 0, over_edge: bool = False
    ) -> Tensor:
        """Add a max pooling, which saves its input. With `over_edge`, the last window may cross the edge."""
        rest = stride - 1 if over_edge else 0
        spatial = ((n + 2 * padding - size + rest) // stride + 1 for n in x.shape[2:])
        shape = (*x.shape[:2], *spatial)
        if not self._pools_by_indices:
            return self._add(name, shape, (x,), (x.name, name))
        indices = Tensor(f"{name}.indices", shape, "i64")
        result = self._add(name, shape, (x,), (x.name, indices.name), writes=(name, indices.name))
        self._tensors.append(indices)
        return result

    def average_pool(self, name: str, x: Tensor) -> Tensor:
        """Add the mean over all spatial axes."""
        return self._add(name, x.shape[:2], (x,))

    def add(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """Add the sum of two tensors."""
        return self._add(name, x.shape, (x, y))

    def concatenate(self, name: str, *parts: Tensor) -> Tensor:
        """Add the concatenation along the channels; the spatial sizes are those of the last part."""
        channels = sum(part.shape[1] for part in parts)
        return self._add(name, (parts[-1].shape[0], channels, *parts[-1].shape[2:]), parts)

    def permute(self, name: str, x: Tensor, *axes: int) -> Tensor:
        """Add a copy in this order of the axes."""
        return self._add(name, tuple(x.shape[axis] for axis in axes), (x,))

    def finish(self, output: Tensor) -> Network:
        """Return the forward network with this output."""
        tensors = [replace(tensor, kind="output") if tensor is output else tensor for tensor in self._tensors]
        return Network(tuple(tensors), tuple(self._steps))

    def _parameter(self, name: str, shape: tuple[int, ...]) -> Tensor:
        parameter = Tensor(name, shape, self._data_type, "parameter")
        self._tensors.append(parameter)
        return parameter

    def _add(
        self,
        name: str,
        shape: tuple[int, ...],
        reads: Sequence[Tensor],
        saves: tuple[str, ...] = (),
        *,
        writes: tuple[str, ...] = (),
        kernels: tuple[Kernel, ...] = (),
        flops: int = 0,
        in_place_of: str = "",
    ) -> Tensor:
        """Add a step and its result, both called `name`."""
        result = Tensor(name, shape, self._data_type, in_place_of=in_place_of)
        self._tensors.append(result)
        names = tuple(tensor.name for tensor in reads)
        self._steps.append(Step(name, names, writes or (name,), saves, kernels, flops))
        return result

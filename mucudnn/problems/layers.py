"""A builder of forward networks, layer after layer, with what PyTorch saves for each layer."""

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
    pooling saves the indices of the maxima, in i64, as in PyTorch; else it saves its result, as in cuDNN.
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
        reads = [x.name, weight.name]
        if bias:
            reads.append(self._parameter(f"{name}.bias", (channels,)).name)
        result = self._tensor(name, (x.shape[0], channels, *problem.output))
        kernels = (Kernel(problem, "forward"),)
        self._steps.append(Step(name, tuple(reads), (name,), (x.name, weight.name), kernels))
        return result

    def up_convolution(self, name: str, x: Tensor, channels: int) -> Tensor:
        """Add a transposed convolution that doubles each spatial size. It counts as a product of matrices."""
        dims = len(x.shape) - 2
        weight = self._parameter(f"{name}.weight", (x.shape[1], channels, *[2] * dims))
        bias = self._parameter(f"{name}.bias", (channels,))
        result = self._tensor(name, (x.shape[0], channels, *(2 * n for n in x.shape[2:])))
        flops = 2 * x.shape[1] * math.prod(result.shape)
        saves = (x.name, weight.name)
        self._steps.append(Step(name, (x.name, weight.name, bias.name), (name,), saves, flops=flops))
        return result

    def linear(self, name: str, x: Tensor, features: int, *, last_axis: bool = False) -> Tensor:
        """Add a linear layer on all axes but the first, or on the last axis alone."""
        inputs = x.shape[-1] if last_axis else math.prod(x.shape[1:])
        weight = self._parameter(f"{name}.weight", (features, inputs))
        bias = self._parameter(f"{name}.bias", (features,))
        shape = (*x.shape[:-1], features) if last_axis else (x.shape[0], features)
        result = self._tensor(name, shape)
        saves, flops = (x.name, weight.name), 2 * math.prod(shape) * inputs
        self._steps.append(Step(name, (x.name, weight.name, bias.name), (name,), saves, flops=flops))
        return result

    def relu(self, name: str, x: Tensor) -> Tensor:
        """Add a ReLU in place: its result takes the memory of its input."""
        result = self._tensor(name, x.shape, in_place_of=x.name)
        self._steps.append(Step(name, (x.name,), (name,), (name,)))
        return result

    def gelu(self, name: str, x: Tensor) -> Tensor:
        """Add a GELU, which saves its input."""
        result = self._tensor(name, x.shape)
        self._steps.append(Step(name, (x.name,), (name,), (x.name,)))
        return result

    def norm(self, name: str, x: Tensor, *, channels: int | None = None) -> Tensor:
        """Add a batch norm, or a layer norm over the last axis; it saves its input."""
        count = x.shape[1] if channels is None else channels
        weight = self._parameter(f"{name}.weight", (count,))
        bias = self._parameter(f"{name}.bias", (count,))
        result = self._tensor(name, x.shape)
        saves = (x.name, weight.name)
        self._steps.append(Step(name, (x.name, weight.name, bias.name), (name,), saves))
        return result

    def response_norm(self, name: str, x: Tensor) -> Tensor:
        """Add a local response normalization, which saves its input and its result."""
        result = self._tensor(name, x.shape)
        self._steps.append(Step(name, (x.name,), (name,), (x.name, name)))
        return result

    def max_pool(
        self, name: str, x: Tensor, size: int, stride: int, *, padding: int = 0, over_edge: bool = False
    ) -> Tensor:
        """Add a max pooling, which saves its input.

        With `over_edge`, the last window may reach over the edge.
        """
        rest = stride - 1 if over_edge else 0
        spatial = ((n + 2 * padding - size + rest) // stride + 1 for n in x.shape[2:])
        shape = (*x.shape[:2], *spatial)
        result = self._tensor(name, shape)
        if not self._pools_by_indices:
            self._steps.append(Step(name, (x.name,), (name,), (x.name, name)))
            return result
        indices = Tensor(f"{name}.indices", shape, "i64")
        self._tensors.append(indices)
        self._steps.append(Step(name, (x.name,), (name, indices.name), (x.name, indices.name)))
        return result

    def average_pool(self, name: str, x: Tensor) -> Tensor:
        """Add the mean over all spatial axes."""
        result = self._tensor(name, x.shape[:2])
        self._steps.append(Step(name, (x.name,), (name,)))
        return result

    def add(self, name: str, x: Tensor, y: Tensor) -> Tensor:
        """Add the sum of two tensors."""
        result = self._tensor(name, x.shape)
        self._steps.append(Step(name, (x.name, y.name), (name,)))
        return result

    def concatenate(self, name: str, *parts: Tensor) -> Tensor:
        """Add the concatenation along the channels; the spatial sizes are those of the last part."""
        channels = sum(part.shape[1] for part in parts)
        result = self._tensor(name, (parts[-1].shape[0], channels, *parts[-1].shape[2:]))
        self._steps.append(Step(name, tuple(part.name for part in parts), (name,)))
        return result

    def permute(self, name: str, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Add a copy in another order of the axes."""
        result = self._tensor(name, tuple(shape))
        self._steps.append(Step(name, (x.name,), (name,)))
        return result

    def finish(self, output: Tensor) -> Network:
        """Return the forward network with this output."""
        tensors = [replace(tensor, kind="output") if tensor is output else tensor for tensor in self._tensors]
        return Network(tuple(tensors), tuple(self._steps))

    def _parameter(self, name: str, shape: tuple[int, ...]) -> Tensor:
        parameter = Tensor(name, shape, self._data_type, "parameter")
        self._tensors.append(parameter)
        return parameter

    def _tensor(self, name: str, shape: tuple[int, ...], *, in_place_of: str = "") -> Tensor:
        tensor = Tensor(name, shape, self._data_type, in_place_of=in_place_of)
        self._tensors.append(tensor)
        return tensor

"""Random layers, and their comparison: a layer on ranks that share a sample with the undivided layer."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from dimensions import layer_class
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils._python_dispatch import TorchDispatchMode

from mucudnn.errors import MucudnnWarning
from mucudnn.torch import spatial
from mucudnn.torch.parallel.spatial import gathering

LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}


@cache
def row() -> DeviceMesh:
    """Return the mesh of all ranks along one dimension."""
    return spatial.init_mesh("cpu", depth=dist.get_world_size(), timeout=60)


def divide(x: torch.Tensor, **options: Any) -> Any:
    """Divide the first spatial axis over all ranks."""
    return spatial.divide(x, row(), {2: "depth"}, **options)


@contextmanager
def noted_gatherings() -> Iterator[list[Any]]:
    """Yield a list that collects the events of gatherings, which give no warning."""
    events: list[Any] = []
    with warnings.catch_warnings(), patch.object(gathering, "listeners", [events.append]):
        warnings.simplefilter("ignore", MucudnnWarning)
        yield events


class Call(nn.Module):
    """A function as a module, with a text that shows its arguments."""

    def __init__(self, function: Callable[..., Any], **arguments: Any) -> None:
        super().__init__()
        self.function, self.arguments = function, arguments

    def forward(self, x: Any) -> Any:
        return self.function(x, **self.arguments)

    def extra_repr(self) -> str:
        return f"{self.function.__name__}, {self.arguments}"


def layer(seed: int) -> tuple[nn.Module, torch.Tensor, int]:
    """Return a random layer in fp64, an input, and the first axis to divide."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    dims = r.choice([1, 2, 2, 3, 3])
    sizes = [r.randint(4, 14 if dims < 3 else 9) for _ in range(dims)]
    channels = r.choice([1, 2, 4, 6])
    shape = [r.choice([1, 2, 3]), channels, *sizes]
    kinds = [_convolution] * 8 + [_transposed] * 3 + [_max_pool, _mean_pool] * 2
    kinds += [_adaptive, _norm, _norm, _resampling, _resampling, _padding]
    while True:  # until the layer accepts the input
        module = r.choice(kinds)(r, dims, channels, sizes)
        try:
            y = copy.deepcopy(module).double()(torch.zeros(shape, dtype=torch.float64))
        except (RuntimeError, ValueError):
            continue
        if y.numel():
            break
    return module.double(), torch.randn(shape, dtype=torch.float64), 2 + r.randrange(dims)


def _convolution(r: random.Random, dims: int, channels: int, sizes: list[int]) -> nn.Module:
    groups = r.choice([1, 1, 1, channels])
    kernel = [r.randint(1, 5) for _ in range(dims)]
    mode = r.choice(["zeros"] * 6 + ["circular", "reflect", "replicate"])
    padding: Any = [r.randint(0, 4) for _ in range(dims)]
    stride = [r.randint(1, 3) for _ in range(dims)]
    if r.random() < 0.15:
        padding, stride = r.choice(["same", "valid"]), [1] * dims
    return layer_class("Conv", dims)(
        channels, groups * r.randint(1, 3), kernel, stride=stride, padding=padding,
        dilation=[r.choice([1, 1, 2, 3]) for _ in range(dims)], groups=groups, bias=r.random() < 0.6,
        padding_mode=mode,
    )  # fmt: skip


def _transposed(r: random.Random, dims: int, channels: int, sizes: list[int]) -> nn.Module:
    groups = r.choice([1, 1, channels])
    stride = [r.randint(1, 4) for _ in range(dims)]
    return layer_class("ConvTranspose", dims)(
        channels, groups * r.randint(1, 3), [r.randint(1, 4) for _ in range(dims)], stride=stride,
        padding=[r.randint(0, 2) for _ in range(dims)], output_padding=[r.randrange(s) for s in stride],
        dilation=[r.choice([1, 1, 2]) for _ in range(dims)], groups=groups, bias=r.random() < 0.6,
    )  # fmt: skip


def _max_pool(r: random.Random, dims: int, channels: int, sizes: list[int]) -> nn.Module:
    kernel = [r.randint(1, 4) for _ in range(dims)]
    return layer_class("MaxPool", dims)(
        kernel, stride=[r.randint(1, 3) for _ in range(dims)], padding=[r.randint(0, k // 2) for k in kernel],
        dilation=[r.choice([1, 1, 2]) for _ in range(dims)], ceil_mode=r.random() < 0.4,
    )  # fmt: skip


def _mean_pool(r: random.Random, dims: int, channels: int, sizes: list[int]) -> nn.Module:
    kernel = [r.randint(1, 4) for _ in range(dims)]
    more: dict[str, Any] = {"divisor_override": r.choice([None, 3])} if dims > 1 else {}
    return layer_class("AvgPool", dims)(
        kernel, stride=[r.randint(1, 3) for _ in range(dims)], padding=[r.randint(0, k // 2) for k in kernel],
        ceil_mode=r.random() < 0.4, count_include_pad=r.random() < 0.5, **more,
    )  # fmt: skip


def _adaptive(r: random.Random, dims: int, channels: int, sizes: list[int]) -> nn.Module:
    kind = r.choice(["AdaptiveAvgPool", "AdaptiveMaxPool"])
    return layer_class(kind, dims)([r.randint(1, n + 1) for n in sizes] if r.random() < 0.7 else 1)


def _norm(r: random.Random, dims: int, channels: int, sizes: list[int]) -> nn.Module:
    norms = [
        lambda: layer_class("BatchNorm", dims)(channels, affine=r.random() < 0.8),
        lambda: layer_class("BatchNorm", dims)(channels).eval(),
        lambda: nn.GroupNorm(r.choice([g for g in range(1, channels + 1) if channels % g == 0]), channels),
        lambda: layer_class("InstanceNorm", dims)(channels, affine=r.random() < 0.5),
    ]
    module = r.choice(norms)()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def _resampling(r: random.Random, dims: int, channels: int, sizes: list[int]) -> nn.Module:
    modes = ["nearest", "nearest-exact", "area", LINEAR[dims], LINEAR[dims]] + ["bicubic"] * (dims == 2)
    mode = r.choice(modes)
    options: dict[str, Any] = {"mode": mode}
    if r.random() < 0.5:
        options["size"] = [r.randint(1, 2 * n) for n in sizes]
    else:
        options["scale_factor"] = [r.choice([0.5, 0.7, 1.0, 1.5, 2.0, 2.3, 3.0]) for _ in sizes]
        options["recompute_scale_factor"] = r.choice([None, True, False])
    if mode in ("linear", "bilinear", "trilinear", "bicubic"):
        options["align_corners"] = r.random() < 0.5
    if mode in ("bilinear", "bicubic"):
        options["antialias"] = r.random() < 0.3
    return Call(nn.functional.interpolate, **options)


def _padding(r: random.Random, dims: int, channels: int, sizes: list[int]) -> nn.Module:
    mode = r.choice(["constant", "reflect", "replicate", "circular"])
    least = -2 if mode == "constant" else 0
    pads = [r.randint(least, 3) for _ in range(2 * dims)]
    more = {"value": r.choice([0.0, 1.5])} if mode == "constant" else {}
    return Call(nn.functional.pad, pad=pads, mode=mode, **more)


def largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference, relative to the largest element if that is above 1."""
    if a.shape != b.shape:
        raise AssertionError(f"shapes {tuple(a.shape)} and {tuple(b.shape)}")
    if not a.numel():
        return 0.0
    return ((a - b).abs().max() / b.abs().max().clamp(min=1)).item()


def mean_of_gradients(module: nn.Module) -> None:
    """Take the mean of the gradients over the world, as DistributedDataParallel does."""
    for parameter in module.parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(grad)
        parameter.grad = grad / dist.get_world_size()


def errors(module: nn.Module, x: torch.Tensor, axes: dict[int, str], mesh: Any) -> tuple[float, float]:
    """Return the largest error of the result and of the gradients, compared with the undivided layer."""
    whole, leaf = copy.deepcopy(module), x.clone().requires_grad_()
    expected = whole(leaf)
    weights = torch.randn(expected.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    (expected * weights).sum().backward()
    mine = x.clone().requires_grad_()
    y = module(spatial.divide(mine, mesh, axes))
    assert tuple(y.shape) == tuple(expected.shape), (tuple(y.shape), tuple(expected.shape))
    result = y.gather()
    (result * weights).sum().backward()
    mean_of_gradients(module)
    pairs = [(mine.grad, leaf.grad)]
    pairs += [(p.grad, q.grad) for p, q in zip(module.parameters(), whole.parameters(), strict=True)]
    pairs += [(b, c) for b, c in zip(module.buffers(), whole.buffers(), strict=True) if b.is_floating_point()]
    return largest(result, expected), max(largest(a, b) for a, b in pairs)


def random_layers(seeds: list[int]) -> list[tuple[int, str, float, float]]:
    """Return each seed with its layer and the errors of result and gradients on this rank."""
    both = spatial.init_mesh("cpu", b=2, c=2) if dist.get_world_size() == 4 else None
    results = []
    for seed in seeds:
        module, x, axis = layer(seed)
        axes, mesh = {axis: "depth"}, row()
        if both and x.dim() > 3 and seed % 2:
            axes, mesh = {2: "b", 3: "c"}, both
        text = f"{module} on {tuple(x.shape)}, divided on {axes}"
        try:
            of_result, of_gradients = errors(module, x, axes, mesh)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {text}: {type(error).__name__}: {error}") from error
        results.append((seed, text, of_result, of_gradients))
    return results


class _Copies(TorchDispatchMode):
    """A mode that counts the operators which copy a tensor into a padded one."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "pad" in function._schema.name
        return function(*args, **(kwargs or {}))


def copies_of_padding() -> tuple[int, int]:
    """Return the copies that zeros around a divided tensor cost, if both ends get as many, and otherwise."""
    x, w = divide(torch.ones(1, 2, 8, 6)), torch.ones(3, 2, 3, 3)
    counts = []
    for pad in ((1, 1, 1, 1), (2, 0, 1, 1)):
        with _Copies() as copies:
            nn.functional.conv2d(nn.functional.pad(x, pad), w)
        counts.append(copies.count)
    return counts[0], counts[1]

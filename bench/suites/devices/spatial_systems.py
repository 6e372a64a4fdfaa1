"""One list of layers on ranks that share a sample, through several systems: right, wrong or refused."""

from __future__ import annotations

from importlib import import_module
from typing import Any

SYSTEMS = ("mucudnn", "DTensor", "ShardTensor")


def layers() -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return layers with the shapes of their inputs; axis 2 is divided."""
    import torch
    from torch import nn

    def resize(**options: Any) -> Any:
        return lambda x: torch.nn.functional.interpolate(x, **options)

    image, volume = (1, 4, 16, 12), (1, 4, 16, 8, 8)
    listed: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for kernel, stride, padding, dilation in (
        (1, 1, 0, 1), (3, 1, 1, 1), (3, 1, 0, 1), (5, 1, 2, 1), (3, 2, 1, 1), (3, 2, 0, 1), (2, 2, 0, 1),
        (4, 2, 1, 1), (7, 2, 3, 1), (3, 1, 2, 2), (3, 3, 1, 1), (2, 1, 1, 1),
    ):  # fmt: skip
        text = f"k{kernel} s{stride} p{padding} d{dilation}"
        geometry = {"stride": stride, "padding": padding, "dilation": dilation}
        listed[f"convolution {text}"] = nn.Conv2d(4, 4, kernel, **geometry), image
        if kernel in (3, 5) or stride == 2:
            listed[f"convolution in 3-D {text}"] = nn.Conv3d(4, 4, kernel, **geometry), volume
    listed |= {
        "transposed k2 s2": (nn.ConvTranspose2d(4, 4, 2, stride=2), image),
        "transposed k4 s2 p1": (nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1), image),
        "transposed k3 s2 p1 o1": (nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1), image),
        "max pooling 2": (nn.MaxPool2d(2), image),
        "max pooling k3 s2 p1": (nn.MaxPool2d(3, 2, 1), image),
        "max pooling k3 s1 p1": (nn.MaxPool2d(3, 1, 1), image),
        "max pooling dilated": (nn.MaxPool2d(2, 2, dilation=2), image),
        "max pooling, ceil": (nn.MaxPool2d(3, 2, ceil_mode=True), image),
        "average pooling 2": (nn.AvgPool2d(2), image),
        "average pooling k3 s2 p1": (nn.AvgPool2d(3, 2, 1), image),
        "average pooling k3 s1 p1": (nn.AvgPool2d(3, 1, 1), image),
        "adaptive average 1": (nn.AdaptiveAvgPool2d(1), image),
        "adaptive average 5": (nn.AdaptiveAvgPool2d(5), image),
        "nearest 2": (resize(scale_factor=2), image),
        "nearest 1.5": (resize(scale_factor=1.5), image),
        "bilinear 2": (resize(scale_factor=2, mode="bilinear"), image),
        "bilinear 1.7": (resize(scale_factor=1.7, mode="bilinear"), image),
        "batch norm": (nn.BatchNorm2d(4), image),
        "group norm": (nn.GroupNorm(2, 4), image),
        "instance norm": (nn.InstanceNorm2d(4), image),
        "circular padding": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), image),
        "reflected padding": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), image),
    }
    return listed


def compare_layers(system: str) -> dict[str, tuple[str, str]]:
    """Return for each layer "right", "wrong" or "refused" with a reason, on this world."""
    import torch
    import torch.distributed as dist

    if system == "ShardTensor":
        _prepare_shard_tensor()
    outcomes = {}
    for name, (layer, shape) in layers().items():
        torch.manual_seed(1)
        if isinstance(layer, torch.nn.Module):
            for parameter in layer.parameters():
                torch.nn.init.normal_(parameter)
            layer = layer.double()
        x = torch.randn(shape, dtype=torch.float64)
        expected = layer(x)
        try:
            y = _run(system, layer, x)
            same = y.shape == expected.shape and bool((y - expected).abs().max() < 1e-10)
            text = "" if same else f"{tuple(y.shape)}" if y.shape != expected.shape else "other values"
            mine = ("right" if same else "wrong", text)
        except Exception as error:
            mine = ("refused", f"{type(error).__name__}: {str(error).splitlines()[0][:120]}")
        each: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(each, mine)
        outcomes[name] = next((outcome for outcome in each if outcome[0] == "wrong"), max(each))
    return outcomes


def _prepare_shard_tensor() -> None:
    """Register ShardTensor's layers, and its process group: without a GPU it does neither itself."""
    import torch
    import torch.distributed as dist

    import_module("physicsnemo.domain_parallel").register_custom_ops()  # it does so itself only on a GPU
    kind = import_module("physicsnemo.distributed").DistributedManager
    kind._shared_state["_is_initialized"] = True
    manager = kind()
    manager._rank = manager._local_rank = dist.get_rank()
    manager._world_size, manager._distributed = dist.get_world_size(), True
    manager._device = torch.device("cpu")


def _run(system: str, layer: Any, x: Any) -> Any:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

    if system == "mucudnn":
        from mucudnn.torch import spatial

        mesh = spatial.init_mesh("cpu", timeout=20, depth=dist.get_world_size())
        y = layer(spatial.divide(x, mesh, {2: "depth"}))
        return y.gather()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if isinstance(layer, torch.nn.Module):
        layer = distribute_module(layer, mesh)
    if system == "DTensor":
        return layer(distribute_tensor(x, mesh, [Shard(2)])).full_tensor()
    scatter_tensor = import_module("physicsnemo.domain_parallel").scatter_tensor
    scattered = scatter_tensor(x, 0, mesh, (Shard(2),), global_shape=x.shape, dtype=x.dtype)
    return layer(scattered).full_tensor()

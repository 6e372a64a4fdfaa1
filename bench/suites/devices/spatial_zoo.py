"""Models that people run, small and with random weights, for the survey of divided models.

Each entry makes a model, names its input and the axis that ranks divide. The packages are those that users
install; a model of a package that is missing counts as absent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Entry:
    """A model of the survey: its package, the shape of its input, and the axis to divide.

    `make` gets the package and returns a module that maps one tensor to one tensor.
    """

    package: str
    make: Callable[[Any], nn.Module]
    shape: tuple[int, ...]
    axis: int
    is_video_decoder: bool = False


class Mapped(nn.Module):
    """A module of which one method is called, and whose result is a tensor."""

    def __init__(self, module: nn.Module, call: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, x: Any) -> Any:
        """Return the first tensor of the result, or the sum of the means of several."""
        return first(self.call(self.module, x))


def first(y: Any) -> Any:
    """Return the tensor of a result that may be an output object, a dict or a list."""
    for name in ("sample", "logits", "last_hidden_state", "latent"):
        if not isinstance(y, torch.Tensor) and hasattr(y, name):
            return first(getattr(y, name))
    if isinstance(y, dict):
        return first(next(iter(y.values())))
    return first(y[0]) if isinstance(y, list | tuple) else y


def decoder(
    name: str, channels: int, size: tuple[int, ...], axis: int, video: bool = True, **options: Any
) -> Entry:
    """Return the decoder of an autoencoder of diffusers."""

    def make(diffusers: Any) -> nn.Module:
        return Mapped(getattr(diffusers, name)(**options), lambda vae, z: vae.decode(z))

    return Entry("diffusers", make, (1, channels, *size), axis, video)


def net(package: str, name: str, shape: tuple[int, ...], axis: int = 2, *args: Any, **options: Any) -> Entry:
    """Return a module of a package, named by its path in the package."""

    def make(module: Any) -> nn.Module:
        target = module
        for part in name.split("."):
            target = getattr(target, part)
        return Mapped(target(*args, **options), lambda net, x: net(x))

    return Entry(package, make, shape, axis)


def timm(name: str, shape: tuple[int, ...], axis: int = 2, **options: Any) -> Entry:
    """Return a model of timm."""
    return Entry("timm", lambda timm: timm.create_model(name, pretrained=False, **options), shape, axis)


def smp(
    name: str, shape: tuple[int, ...] = (2, 3, 64, 64), encoder: str = "resnet18", **options: Any
) -> Entry:
    """Return a segmentation model with a small encoder."""
    return net(
        "segmentation_models_pytorch", name, shape, 2, encoder, encoder_weights=None, classes=2, **options
    )


_declared: list[torch.library.Library] = []  # a library that is freed takes its operators along


def ready() -> None:
    """Let torchvision load beside a PyTorch for which its operators are not built; the models use none."""
    try:
        import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declared.append(torch.library.Library("torchvision", "DEF"))
        for operator in ("nms", "qnms"):
            _declared[-1].define(f"{operator}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    except ImportError:
        pass  # only some models need it


def make(entry: Entry) -> tuple[nn.Module, Tensor]:
    """Return an entry's model in fp64 for inference, and an input. Raises ImportError without its package."""
    torch.manual_seed(1)
    module = entry.make(import_module(entry.package)).double().eval()
    for parameter in module.parameters():  # many modules begin with zeros, which hide errors
        if not parameter.abs().max():
            nn.init.normal_(parameter, std=0.05)
    return module, torch.randn(entry.shape, dtype=torch.float64)

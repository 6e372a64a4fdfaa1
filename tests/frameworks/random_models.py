"""Small random models of PyTorch, with ways to run them. A seed always gives the same model."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from dimensions import CHANNELS_LAST, layer_class
from needs_torch import torch
from torch.utils.checkpoint import checkpoint

nn = torch.nn
STEPS = ["train", "train", "train", "gradients in eval", "transform", "no_grad", "inference_mode"]


class Residual(nn.Module):
    """A module that adds the input to the output of its body."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Branches(nn.Module):
    """A module that concatenates the channels of two bodies."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.one, self.two = first, second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.one(x), self.two(x)], 1)


class Twice(Residual):
    """A module that runs the same parameters twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.body(x).tanh())


class Checkpointed(Residual):
    """A module that computes its body again in the backward pass."""

    reentrant = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch._C._functorch.peek_interpreter_stack() is not None:  # checkpoint supports no transforms
            return self.body(x)
        return checkpoint(self.body, x, use_reentrant=self.reentrant)


@dataclass
class Sample:
    """A model with its input and its kind of step."""

    model: nn.Module
    x: torch.Tensor
    step: str
    autocast: torch.dtype | None
    x_needs_gradient: bool
    seed: int

    def converted(self, change: Callable[[nn.Module], nn.Module]) -> Sample:
        return Sample(change(copy.deepcopy(self.model)), self.x, *self._rest())

    def in_fp64(self) -> Sample:
        """Return the sample in fp64, with contiguous tensors and without autocast."""
        model = copy.deepcopy(self.model).double()
        for parameter in model.parameters():
            parameter.data = parameter.data.contiguous()
        return Sample(model, self.x.double().contiguous(), self.step, None, *self._rest()[2:])

    def _rest(self) -> tuple[Any, ...]:
        return self.step, self.autocast, self.x_needs_gradient, self.seed

    def results(self) -> dict[str, torch.Tensor]:
        """Run one step, and return outputs of all convolutions, gradients and buffers."""
        torch.manual_seed(self.seed)  # dropout draws from it
        model, x, tensors = self.model, self.x.detach(), {}
        model.train(self.step == "train")
        hooks = [
            module.register_forward_hook(
                lambda module, args, y, name=name: tensors.update({f"{name}'s y": y})
            )
            for name, module in model.named_modules()
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) and self.step != "transform"
        ]
        autocast = torch.autocast("cpu", self.autocast) if self.autocast else nullcontext()
        if self.step == "transform":
            with autocast:
                tensors |= self._transformed(x)
        elif self.step in ("no_grad", "inference_mode"):
            with getattr(torch, self.step)(), autocast:
                tensors["y"] = model(x)
        else:
            x.requires_grad_(self.x_needs_gradient)
            with autocast:
                tensors["y"] = model(x)
            loss(tensors["y"]).backward()
            tensors |= {f"{name}.grad": p.grad for name, p in model.named_parameters() if p.grad is not None}
            if x.grad is not None:
                tensors["x.grad"] = x.grad
        for hook in hooks:
            hook.remove()
        tensors |= {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}
        return {name: tensor.detach() for name, tensor in tensors.items()}

    def _transformed(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the gradients that torch.func computes."""
        weights = {name: parameter.detach() for name, parameter in self.model.named_parameters()}

        def run(weights: dict[str, torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = torch.func.functional_call(self.model, weights, (x,))
            return loss(y), y

        (gradients, dx), y = torch.func.grad(run, (0, 1), has_aux=True)(weights, x)
        return {"y": y, "dx": dx, **{f"d{name}": gradient for name, gradient in gradients.items()}}


def loss(y: torch.Tensor) -> torch.Tensor:
    return (y.double() if y.dtype is torch.float64 else y.float()).tanh().square().sum()


def sample(seed: int) -> Sample:
    """Return the model of a seed."""
    r = random.Random(seed)
    torch.manual_seed(seed)
    dims = r.choice([1, 2, 2, 2, 3])
    dtype = r.choice([torch.float32] * 5 + [torch.float64, torch.bfloat16])
    autocast = r.choice([None, None, torch.bfloat16]) if dtype is torch.float32 else None
    builder = Builder(r, dims, in_16_bit=torch.bfloat16 in (dtype, autocast))
    shape = (r.choice([1, 2, 3, 8]), r.choice([1, 2, 3, 4]), *(r.choice([1, 5, 7, 8]) for _ in range(dims)))
    model = builder.chain(shape, r.randint(2, 5)).to(dtype)
    for parameter in model.parameters():
        if r.random() < 0.1:
            parameter.requires_grad_(False)
    x = torch.randn(shape, dtype=dtype)
    if dims > 1:
        if r.random() < 0.4:
            model = model.to(memory_format=CHANNELS_LAST[dims + 2])
        if r.random() < 0.4:
            x = x.contiguous(memory_format=CHANNELS_LAST[dims + 2])
    if r.random() < 0.15:
        x = x.transpose(-1, 1).contiguous().transpose(-1, 1)
    step = r.choice(STEPS)
    needs_gradient = not any(p.requires_grad for p in model.parameters()) or r.random() < 0.6
    return Sample(model, x, step, autocast, needs_gradient or has_reentrant(model), seed)


def has_reentrant(model: nn.Module) -> bool:
    return any(isinstance(module, Checkpointed) and module.reentrant for module in model.modules())


class Builder:
    """A builder of random layers."""

    def __init__(self, r: random.Random, dims: int, in_16_bit: bool) -> None:
        self.r, self.dims, self.in_16_bit = r, dims, in_16_bit

    def chain(self, shape: tuple[int, ...], length: int) -> nn.Sequential:
        layers: list[nn.Module] = [self.convolution(shape)]
        for _ in range(length):
            at = output_shape(nn.Sequential(*layers), shape)
            layers.append(self.layer(at))
        return nn.Sequential(*layers, self.convolution(output_shape(nn.Sequential(*layers), shape)))

    def layer(self, shape: tuple[int, ...]) -> nn.Module:
        r, channels = self.r, shape[1]
        kinds = [
            lambda: nn.Sequential(self.convolution(shape), nn.ReLU(inplace=r.random() < 0.5)),
            lambda: self.normalized(shape),
            lambda: Residual(nn.Sequential(self.convolution(shape, same=True), nn.GELU())),
            lambda: Branches(self.convolution(shape, same=True), self.convolution(shape, same=True)),
            lambda: Twice(self.convolution(shape, same=True)),
            lambda: self.checkpointed(shape),
            lambda: layer_class("ConvTranspose", self.dims)(
                channels, r.randint(1, 4), r.randint(1, 3), stride=r.randint(1, 2)
            ),
            lambda: nn.Dropout(0.3),
            lambda: layer_class("MaxPool", self.dims)(2 if min(shape[2:]) > 1 else 1),
        ]
        # In 16 bits PyTorch 2.13 gives wrong results for small sizes on the CPU, and this convolution stays
        # its own.
        if not self.in_16_bit:
            kinds.append(lambda: nn.utils.parametrizations.weight_norm(self.convolution(shape)))
        return r.choice(kinds)()

    def normalized(self, shape: tuple[int, ...]) -> nn.Module:
        convolution = self.convolution(shape)
        n, channels, *spatial = output_shape(convolution, shape)
        values = torch.Size(spatial).numel()
        norms = [nn.Identity()]
        if n * values > 1:  # batch norms need two values to train
            norms = [layer_class("BatchNorm", self.dims)(channels) for _ in range(2)]
        if channels * values > 1:
            norms.append(nn.GroupNorm(1, channels))
        return nn.Sequential(convolution, self.r.choice(norms), nn.ReLU())

    def checkpointed(self, shape: tuple[int, ...]) -> nn.Module:
        body = Checkpointed(nn.Sequential(self.convolution(shape), nn.SiLU()))
        body.reentrant = self.r.random() < 0.3
        return body

    def convolution(self, shape: tuple[int, ...], same: bool = False) -> nn.Module:
        """Return a convolution, or one whose output has the shape of its input."""
        r, channels, spatial = self.r, shape[1], shape[2:]
        groups = r.choice([g for g in range(1, channels + 1) if channels % g == 0] + [1, channels])
        kernel = [r.choice([1, 2, 3, 3, 5]) for _ in spatial]
        # PyTorch 2.13 crashes on the CPU if a padded axis of size one is dilated.
        dilation = [
            r.choice([1, 1, 2]) if size > 1 and k > 1 and not self.in_16_bit else 1
            for size, k in zip(spatial, kernel, strict=True)
        ]
        stride, mode, padding = [1] * self.dims, "zeros", "same"
        if not same:
            stride = [r.choice([1, 1, 2, 3]) for _ in spatial]
            reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
            padding = [
                max(r.choice([0, 1]), (size - i + 1) // 2) for size, i in zip(reach, spatial, strict=True)
            ]
            mode = r.choice(["zeros"] * 6 + ["circular", "replicate"])
            if mode == "circular" and any(p > i for p, i in zip(padding, spatial, strict=True)):
                mode = "zeros"
        out = channels if same else groups * r.randint(1, 4)
        return layer_class("Conv", self.dims)(
            channels, out, tuple(kernel), stride=tuple(stride), padding=padding if same else tuple(padding),
            dilation=tuple(dilation), groups=groups, bias=r.random() < 0.6, padding_mode=mode,
        )  # fmt: skip


def output_shape(layer: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a layer's output."""
    training = layer.training
    with torch.no_grad():
        result = layer.eval()(torch.zeros(shape)).shape
    layer.train(training)
    return tuple(result)

"""Cases of random numbers, in which ranks that share a sample have different seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from spatial_layers import divide
from torch import nn
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)
from torch.utils.checkpoint import checkpoint

from mucudnn.torch import spatial
from mucudnn.torch.parallel.spatial.exchange import messages

SAMPLES, CHANNELS, ROWS = 8, 4, 7


class DropPath(nn.Module):
    """A residual branch that is dropped for whole samples, with a mask that the tensor itself makes."""

    def forward(self, x: Any) -> Any:
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(0.5)
        return x * mask.div_(0.5)


class StochasticDepth(nn.Module):
    """A branch that is dropped for whole samples or the batch, with a mask of the tensor's type."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: Any) -> Any:
        size = [x.shape[0] if self.mode == "row" else 1] + [1] * (x.ndim - 1)
        return x * torch.empty(size, dtype=x.dtype, device=x.device).bernoulli_(0.5).div_(0.5)


class Head(nn.Module):
    """The whole layers after the divided part, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(CHANNELS * ROWS * 6, 3)

    def forward(self, x: Any) -> Any:
        return self.last(self.drop(x.flatten(1)))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "drop path": DropPath,
    "stochastic depth of samples": lambda: StochasticDepth("row"),
    "stochastic depth of the batch": lambda: StochasticDepth("batch"),
    "dropout of channels": lambda: nn.Dropout2d(0.5),
}
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "noise": lambda x: x + torch.randn(SAMPLES, CHANNELS, 1, 1),
    "whole noise": lambda x: x + torch.rand(x.shape, dtype=torch.float64),
    "one number": lambda x: x * torch.rand(()),
    "new": lambda x: x + x.new_zeros(CHANNELS, 1, 1).normal_(),
}


def _seeded_input() -> torch.Tensor:
    """Return an input of ones, on a rank with its own seed."""
    torch.manual_seed(dist.get_rank())
    return torch.ones(SAMPLES, CHANNELS, ROWS, 6, dtype=torch.float64)


def random_functions() -> list[str]:
    """Return the functions whose result differs from that on a whole tensor with the same random numbers.

    Dropout of elements comes before each: parts of different lengths must not move the generators apart.
    """
    x = _seeded_input()
    wrong = []
    for name, function in {**FUNCTIONS, **{key: make() for key, make in LAYERS.items()}}.items():
        divided = divide(x)
        F.dropout(divided, 0.5)
        state = torch.get_rng_state()
        result = function(divided).gather()
        if name == "dropout of channels":  # has its own generator
            expected = result[:, :, :1, :1].expand_as(result)
        else:
            dist.broadcast(state, 0)
            torch.set_rng_state(state)
            expected = function(x)
        if not torch.equal(result, expected):
            wrong.append(name)
    return wrong


def random_gradients() -> dict[str, bool]:
    """Return whether all ranks have the same loss and gradients in the layers after the border."""
    are_equal = {}
    for name, repeated in (("drop path", False), ("drop path", True), ("dropout of channels", True)):
        x = _seeded_input()
        first, head = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1).double(), Head().double()
        for parameter in (*first.parameters(), *head.parameters()):
            dist.broadcast(parameter.detach(), 0)
        body = nn.Sequential(first, LAYERS[name](), nn.Dropout(0.2))
        x_divided = divide(x)
        y = checkpoint(body, x_divided, use_reentrant=False) if repeated else body(x_divided)
        loss = head(y).square().mean()
        loss.backward()
        mine = torch.cat([loss.detach().flatten(), *(p.grad.flatten() for p in head.parameters())])
        first_rank = mine.clone()
        dist.broadcast(first_rank, 0)
        are_equal[f"{name}, {'repeated' if repeated else 'kept'}"] = torch.equal(mine, first_rank)
    return are_equal


def random_groups() -> list[list[float]]:
    """Return noise that each rank of a 2 × 2 mesh draws after `divide`, in the order of the ranks."""
    mesh = spatial.init_mesh("cpu", data=2, depth=2, timeout=60)
    torch.manual_seed(dist.get_rank())
    spatial.divide(torch.ones(1, 1, 4), mesh, {2: "depth"})
    each: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(each, torch.rand(4).tolist())
    return each


def equal_seeds() -> bool:
    """Return whether `divide` leaves generators with equal seeds unchanged."""
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    divide(torch.ones(1, 1, 4))
    return torch.equal(torch.randn(3), expected)


def early() -> dict[str, list[str]]:
    """Return the errors of ranks that drew a tensor, or a model's parameters, before they divide."""
    x = _seeded_input()
    noise, norm = torch.randn(SAMPLES, 1, 1, 1), nn.GroupNorm(1, CHANNELS).double()
    nn.init.normal_(norm.weight)
    layers: dict[str, Callable[[Any], Any]] = {
        "noise": lambda d: d + noise,
        "channels of noise": lambda d: torch.cat([d, noise.double().expand(x.shape)], 1),
        "convolution": nn.Conv2d(CHANNELS, 2, 3).double(),
        "norm": norm,
    }
    errors: dict[str, list[str]] = {name: [] for name in layers}
    for name, layer in 2 * list(layers.items()):  # an error that a program caught is raised again
        divided = divide(x)
        try:
            layer(divided)
        except spatial.DivergedError as error:
            errors[name].append(str(error))
    return errors


def repeated() -> tuple[int, int]:
    """Return the numbers of messages of a layer and a sum with a whole tensor, in their first and second use.

    The ranks computed the whole tensor with different rounding.
    """
    x = _seeded_input()
    divided, layer = divide(x), nn.PReLU().double()
    whole = torch.randn(SAMPLES, CHANNELS, 1, 1) * (1 + 1e-7 * dist.get_rank())
    counts = []
    for _ in range(2):
        with patch.object(messages, "move", wraps=messages.move) as move:
            layer(divided + whole)
        counts.append(move.call_count)
    return counts[0], counts[1]

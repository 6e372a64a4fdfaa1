"""The tensors that stages pass to each other: their descriptions, and the entry into a stage."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.pipeline.arguments import Arguments

StageSource: TypeAlias = nn.Module | Callable[[], nn.Module]
"""A stage, or a function that builds it."""


MOST_TENSORS = 400  # their descriptions always fit into a message


@dataclass(frozen=True)
class Description:
    """The shape and data type of a tensor, and whether its gradient travels back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool

    @classmethod
    def of(cls, tensor: Tensor) -> "Description":
        """Describe a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype, tensor.requires_grad)

    def allocate(self, device: torch.device) -> Tensor:
        """Return a tensor without values and without gradient."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    @property
    def bytes(self) -> int:
        """The bytes of the values."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    def __str__(self) -> str:
        """Return a text such as `(4, 6) torch.float32 without gradient`."""
        return f"{self.shape} {self.dtype}" + ("" if self.requires_grad else " without gradient")


@dataclass(frozen=True)
class Layout:
    """The tensors that a stage passes to the next stage for a micro-batch.

    Attributes:
        tensors: the descriptions of the tensors that travel.
        places: for each input of the next stage, the number of its tensor, because a stage may return the
            same tensor twice.
        names: the names of these inputs; None if they are passed by position.
    """

    tensors: tuple[Description, ...]
    places: tuple[int, ...]
    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, values: Arguments) -> "Layout":
        """Describe a stage's outputs."""
        numbers = {tensor: number for number, tensor in enumerate(distinct(values.tensors))}
        places = tuple(numbers[tensor] for tensor in values.tensors)
        return cls(tuple(map(Description.of, numbers)), places, values.names)

    @property
    def gradients(self) -> list[Description]:
        """The tensors whose gradients travel back."""
        return [d for d in self.tensors if d.requires_grad]

    def arrange(self, tensors: Sequence[Tensor]) -> Arguments:
        """Return a stage's inputs: the tensors of a message in their places, as leaves for autograd."""
        for tensor, description in zip(tensors, self.tensors, strict=True):
            tensor.requires_grad_(description.requires_grad)
        return Arguments(tuple(tensors[number] for number in self.places), self.names)

    def __str__(self) -> str:
        """Return the descriptions of all outputs, joined by "and"."""
        names = [f"{name}=" for name in self.names or ()] or [""] * len(self.places)
        descriptions = [str(self.tensors[number]) for number in self.places]
        return " and ".join(map("".join, zip(names, descriptions, strict=True)))


def distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors in their order, each object once."""
    return list(dict.fromkeys(tensors))


def check_outputs(outputs: Sequence[Tensor], what: str, device: torch.device) -> None:
    """Raise UsageError that names `what` unless the tensors can be sent from a device."""
    if not outputs:
        raise UsageError(f"{what} is empty: stages pass tensors, or tuples or dicts of tensors")
    if len(outputs) > MOST_TENSORS:
        raise UsageError(f"{what} has {len(outputs)} tensors: stages pass up to {MOST_TENSORS}")
    for tensor in outputs:
        if tensor.layout is not torch.strided:
            raise UsageError(f"{what} has the layout {tensor.layout}: stages pass dense tensors")
        if tensor.device != device:
            raise UsageError(f"{what} is on {tensor.device}: a stage on {device} passes tensors on {device}")


def enter(arguments: Arguments) -> Arguments:
    """Return arguments with the same values that a stage may change in place.

    The gradients arrive in the `grad` of the original tensors, which are leaves.
    """
    entered = {t: _Entry.apply(t) if t.requires_grad else t for t in distinct(arguments.tensors)}
    return arguments.but([entered[tensor] for tensor in arguments.tensors])


class _Entry(torch.autograd.Function):
    """The identity, without a copy. Its result may change in place: it is neither a leaf nor a view."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient

"""The shapes of the tensors between stages. Every rank finds all of them itself, on `meta` tensors."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from mucudnn.errors import UsageError

StageSource: TypeAlias = nn.Module | Callable[[], nn.Module]
"""A stage, or a function that builds it."""


@dataclass(frozen=True)
class Description:
    """The shape and data type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> "Description":
        """Describe a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)

    def allocate(self, device: torch.device | str) -> Tensor:
        """Return a tensor without values."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    @property
    def bytes(self) -> int:
        """The bytes of the values."""
        return math.prod(self.shape) * int(self.dtype.itemsize)

    @property
    def has_gradient(self) -> bool:
        """True if a gradient of the tensor travels back to the stage before."""
        return bool(self.dtype.is_floating_point or self.dtype.is_complex)


def as_tuple(values: Any, what: str) -> tuple[Tensor, ...]:
    """Return a tensor, or a tuple or list of tensors, as a tuple. Raises UsageError that names `what`."""
    found = tuple(values) if isinstance(values, tuple | list) else (values,)
    for value in found:
        if not isinstance(value, Tensor):
            raise UsageError(f"{what} is a {type(value).__name__}: stages pass tensors, or tuples of tensors")
    return found


def inputs_of_stages(
    stages: Sequence[StageSource], micro_batch: Sequence[Tensor]
) -> list[tuple[Description, ...]]:
    """Return the descriptions of each stage's inputs for one micro-batch, and at the end those of the output.

    No stage computes anything: weights and inputs are replaced by `meta` tensors.

    Raises:
        UsageError: a stage does not take what the stage before it gives.
    """
    values = tuple(torch.empty_like(tensor, device="meta") for tensor in micro_batch)
    found = [tuple(map(Description.of, values))]
    for number, source in enumerate(stages):
        module = source if isinstance(source, nn.Module) else _build_on_meta(source)
        state = {
            name: torch.empty_like(tensor, device="meta")
            for name, tensor in (*module.named_parameters(), *module.named_buffers())
        }
        try:
            with torch.no_grad():
                output = torch.func.functional_call(module, state, values)
        except Exception as error:  # the stage's code may raise any error
            given = " and ".join(f"{tuple(v.shape)} {v.dtype}" for v in values)
            raise UsageError(f"stage {number} does not take {given}: {error}") from error
        values = as_tuple(output, f"the output of stage {number}")
        found.append(tuple(map(Description.of, values)))
    return found


def _build_on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return build()

"""The tensors that stages pass to each other and to the loss, and their division into micro-batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import UsageError

MOST_TENSORS = 400  # their outlines always fit into a message


@dataclass(frozen=True)
class Arguments:
    """A stage's inputs: the tensors of a tuple by position, or those of a dict by name.

    Attributes:
        tensors: the tensors. A stage may return the same tensor twice.
        names: their names; None if they are passed by position.
    """

    tensors: tuple[Tensor, ...]
    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, values: Any, what: str) -> "Arguments":
        """Return a tensor, a tuple or list of tensors, or a dict of tensors. Raises UsageError."""
        names = None
        if isinstance(values, Mapping):
            names, values = tuple(values.keys()), tuple(values.values())
        tensors = tuple(values) if isinstance(values, tuple | list) else (values,)
        for number, value in enumerate(tensors):
            if not isinstance(value, Tensor):
                place = "" if names is None else f"[{names[number]!r}]"
                raise UsageError(
                    f"{what}{place} is a {type(value).__name__}: "
                    "stages pass tensors, or tuples or dicts of tensors"
                )
        return cls(tensors, names)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Arguments":
        """Return a function's results in the place of the tensors. It is called once for each tensor."""
        results = {tensor: function(tensor) for tensor in self.distinct}
        return Arguments(tuple(results[tensor] for tensor in self.tensors), self.names)

    def outline(self) -> "Arguments":
        """Return tensors without values in the place of the tensors, which are the same on every device."""
        return self.map(
            lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta", requires_grad=t.requires_grad)
        )

    def zeros(self, device: torch.device) -> "Arguments":
        """Return zeros in the place of the tensors, as leaves that require a gradient if the tensors do."""
        return self.map(lambda t: torch.zeros_like(t, device=device, requires_grad=t.requires_grad))

    def call(self, function: Any) -> Any:
        """Return a function's result for these arguments."""
        return function(*self.tensors) if self.names is None else function(**self.value)

    @property
    def distinct(self) -> list[Tensor]:
        """The tensors in their order, each object once."""
        return list(dict.fromkeys(self.tensors))

    @property
    def trained(self) -> list[Tensor]:
        """The distinct tensors that require a gradient."""
        return [tensor for tensor in self.distinct if tensor.requires_grad]

    @property
    def value(self) -> Any:
        """The tensor if there is only one without a name, otherwise a tuple or a dict."""
        if self.names is not None:
            return dict(zip(self.names, self.tensors, strict=True))
        return self.tensors[0] if len(self.tensors) == 1 else self.tensors

    @property
    def samples(self) -> int:
        """The size of axis 0."""
        return len(self.tensors[0])

    def __str__(self) -> str:
        """Return a text such as `x=(4, 6) torch.float32 and mask=(4, 1) torch.bool without gradient`."""
        names = [f"{name}=" for name in self.names or ()] or [""] * len(self.tensors)
        return " and ".join(map("".join, zip(names, map(describe, self.tensors), strict=True)))


def describe(tensor: Tensor) -> str:
    """Return a text such as `(4, 6) torch.float32 without gradient`."""
    return f"{tuple(tensor.shape)} {tensor.dtype}" + ("" if tensor.requires_grad else " without gradient")


def divide(values: Mapping[str, Any], parts: int) -> list[list[Arguments]]:
    """Return the micro-batches of inputs and targets: as many as `parts`, or as many as there are samples.

    The first ones have one sample more than the others if the samples do not divide.

    Args:
        values: the inputs and the targets by these names, or any other values.
        parts: the number of micro-batches.

    Raises:
        UsageError: there are no samples, or the tensors have different numbers of them.
    """
    wholes, what = [Arguments.of(value, name) for name, value in values.items()], " and ".join(values)
    counts = {t.shape[0] if t.dim() else 0 for arguments in wholes for t in arguments.tensors}
    if len(counts) != 1:
        raise UsageError(f"the {what} have different numbers of samples: {sorted(counts)}")
    (count,) = counts
    if count == 0:
        raise UsageError(f"the {what} have no samples: leave out empty mini-batches on all ranks")
    parts = min(parts, count)

    def part(tensor: Tensor, number: int) -> Tensor:
        # Detached, because views share a version counter: a change of one would look like a change of all.
        view = tensor.tensor_split(parts)[number]
        return view if view.requires_grad else view.data

    return [[whole.map(partial(part, number=number)) for number in range(parts)] for whole in wholes]


def join(parts: Sequence[Arguments], what: str) -> Arguments:
    """Return the outputs of a mini-batch from those of its micro-batches. Raises UsageError."""
    for tensor in (tensor for part in parts for tensor in part.tensors):
        if tensor.dim() == 0:
            raise UsageError(f"{what} has no samples: its dimensions are (), the first must be the samples")
    columns = zip(*(part.tensors for part in parts), strict=True)
    return Arguments(tuple(map(torch.cat, columns)), parts[0].names)


def check_outputs(outputs: Arguments, what: str, device: torch.device) -> None:
    """Raise UsageError that names `what` unless the tensors can be sent from a device."""
    if not outputs.tensors:
        raise UsageError(f"{what} is empty: stages pass tensors, or tuples or dicts of tensors")
    if len(outputs.tensors) > MOST_TENSORS:
        raise UsageError(f"{what} has {len(outputs.tensors)} tensors: stages pass up to {MOST_TENSORS}")
    for tensor in outputs.tensors:
        if tensor.layout is not torch.strided:
            raise UsageError(f"{what} has the layout {tensor.layout}: stages pass dense tensors")
        if tensor.device != device:
            raise UsageError(f"{what} is on {tensor.device}: a stage on {device} passes tensors on {device}")


def enter(arguments: Arguments) -> Arguments:
    """Return arguments with the same values that a stage may change in place.

    The gradients arrive in the `grad` of the original tensors, which are leaves.
    """
    return arguments.map(lambda tensor: _Entry.apply(tensor) if tensor.requires_grad else tensor)


class _Entry(torch.autograd.Function):
    """The identity, without a copy. Its result may change in place: it is neither a leaf nor a view."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient

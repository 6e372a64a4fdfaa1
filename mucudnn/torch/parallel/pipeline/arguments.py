"""The tensors that a stage or the loss takes, and their division into micro-batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import UsageError


@dataclass(frozen=True)
class Arguments:
    """A stage's inputs: the tensors of a tuple by position, or those of a dict by name.

    Attributes:
        tensors: the tensors.
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

    def but(self, tensors: Sequence[Tensor]) -> "Arguments":
        """Return arguments with other tensors under the same names."""
        return Arguments(tuple(tensors), self.names)

    def call(self, function: Any) -> Any:
        """Return a function's result for these arguments."""
        return function(*self.tensors) if self.names is None else function(**self.value)

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


def divide(values: Any, parts: int, what: str) -> list[Arguments]:
    """Return the micro-batches of a mini-batch: as many as `parts`, or as many as there are samples.

    The first ones have one sample more than the others if the samples do not divide.

    Raises:
        UsageError: there are no samples, or the tensors have different numbers of them.
    """
    arguments = Arguments.of(values, what)
    counts = {t.shape[0] if t.dim() else 0 for t in arguments.tensors}
    if len(counts) != 1:
        raise UsageError(f"the {what} have different numbers of samples: {sorted(counts)}")
    (count,) = counts
    if count == 0:
        raise UsageError(f"the {what} have no samples: leave out empty mini-batches on all ranks")
    # Detached, because views share a version counter: a change of one would look like a change of all.
    chunks = [
        [view if view.requires_grad else view.data for view in tensor.tensor_split(min(parts, count))]
        for tensor in arguments.tensors
    ]
    return [arguments.but(tensors) for tensors in zip(*chunks, strict=True)]


def join(parts: Sequence[Arguments], what: str) -> Arguments:
    """Return the outputs of a mini-batch from those of its micro-batches. Raises UsageError."""
    for tensor in (tensor for part in parts for tensor in part.tensors):
        if tensor.dim() == 0:
            raise UsageError(f"{what} has no samples: its dimensions are (), the first must be the samples")
    columns = zip(*(part.tensors for part in parts), strict=True)
    return parts[0].but([torch.cat(column) for column in columns])

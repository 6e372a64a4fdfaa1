"""The types of the decisions: micro-configurations, configurations, and the error when nothing fits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

TIE = 1e-12  # times count as equal if they differ relatively by no more than this


@dataclass(frozen=True, slots=True)
class MicroConfiguration:
    """One algorithm measured at one micro-batch size.

    Args:
        micro_batch: the slice's length along N, at least 1.
        algorithm: the algorithm's name.
        time_ms: milliseconds of one run, finite and not negative.
        workspace: scratch bytes that the run needs, not negative.

    Raises:
        ValueError: a figure is out of its range; the message holds it.
    """

    micro_batch: int
    algorithm: str
    time_ms: float
    workspace: int

    def __post_init__(self) -> None:
        if self.micro_batch < 1:
            raise ValueError(f"micro_batch is {self.micro_batch}, must be at least 1")
        if not 0 <= self.time_ms < math.inf:  # False for NaN too
            raise ValueError(f"time_ms of {self._name} is {self.time_ms}, must be finite and not negative")
        if self.workspace < 0:
            raise ValueError(f"workspace of {self._name} is {self.workspace}, must not be negative")

    @property
    def _name(self) -> str:
        return f"{self.algorithm} at micro-batch {self.micro_batch}"


@dataclass(frozen=True, slots=True)
class Configuration:
    """Micro-configurations run one after the other on one workspace; their sizes add to the mini-batch.

    Raises:
        ValueError: there are no parts.
    """

    parts: tuple[MicroConfiguration, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a configuration needs at least one part")

    @property
    def mini_batch(self) -> int:
        """The sum of the parts' sizes."""
        return sum(part.micro_batch for part in self.parts)

    @property
    def time_ms(self) -> float:
        """Milliseconds, the correctly rounded sum over the parts."""
        return math.fsum(part.time_ms for part in self.parts)

    @property
    def workspace(self) -> int:
        """Bytes, the maximum over the parts."""
        return max(part.workspace for part in self.parts)


class Infeasible(Exception):  # noqa: N818 (a fixed public name)
    """No choice fits the memory allowed.

    Attributes:
        limit: the bytes that were allowed; None where there was no limit.
        need: the least bytes with which there is a choice; None where no amount is enough.
    """

    def __init__(self, message: str, *, limit: int | None, need: int | None) -> None:
        super().__init__(message)
        self.limit = limit
        self.need = need


class Costed(Protocol):
    """A thing that has a time and a workspace, such as a configuration."""

    @property
    def time_ms(self) -> float:
        """The time in milliseconds."""
        ...

    @property
    def workspace(self) -> int:
        """The workspace in bytes."""
        ...


C = TypeVar("C", bound=Costed)


def faster(time_ms: float, than_ms: float) -> bool:
    """Return whether a time is less than another by more than TIE."""
    return time_ms < than_ms * (1 - TIE)


def pareto_front(candidates: Iterable[C]) -> list[C]:
    """Return the candidates that are faster than all before them.

    The candidates come with workspace ascending; of those with equal workspace, the preferred one first.
    """
    front: list[C] = []
    fastest = math.inf
    for candidate in candidates:
        time_ms = candidate.time_ms
        if faster(time_ms, fastest):
            front.append(candidate)
            fastest = time_ms
    return front

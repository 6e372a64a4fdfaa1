"""The types of decisions: micro-configurations, configurations, and the error if nothing fits."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, Protocol, TypeAlias, TypeVar

TIE = 1e-12  # the largest relative difference between times that count as equal


class Costed(Protocol):
    """An object with a time and a workspace, such as a configuration."""

    @property
    def time_ms(self) -> float:
        """The time in milliseconds."""
        ...

    @property
    def workspace(self) -> int:
        """The workspace in bytes."""
        ...


class Part(Costed, Protocol):
    """An algorithm for a part of the work, such as a slice of the mini-batch."""

    @property
    def size(self) -> int:
        """The part's length along the axis that is divided."""
        ...

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        ...


C = TypeVar("C", bound=Costed)
P = TypeVar("P", bound=Part)

Slices: TypeAlias = tuple[tuple[int, str], ...]
"""The (size, algorithm) of each part of a configuration, in order, as engines take them."""


_TILE = ".tile="


def tile_of(algorithm: str) -> tuple[str, int] | None:
    """Return the algorithm and the length of its tiles, or None for an algorithm without tiles.

    `WINOGRAD.tile=8` divides each sample along its height, or depth, into tiles of 8 steps.
    """
    name, tile, steps = algorithm.rpartition(_TILE)
    return (name, int(steps)) if tile and steps.isdecimal() else None


def is_tiled(algorithm: str) -> bool:
    """Return whether an algorithm runs in tiles of its samples."""
    return _TILE in algorithm


def check_part(part: Part, name: str) -> None:
    """Raise a ValueError with the figure if a part's size, time or workspace is out of range.

    `name` is the part's field with the size.
    """
    if part.size < 1:
        raise ValueError(f"{name} is {part.size}, must be at least 1")
    place = f"{part.algorithm} at {name.replace('_', '-')} {part.size}"
    if not 0 <= part.time_ms < 2**63:  # the sum of longer times may not be finite
        raise ValueError(f"time_ms of {place} is {part.time_ms}, must be at least 0 and below 2^63")
    if part.workspace < 0:
        raise ValueError(f"workspace of {place} is {part.workspace}, must not be negative")


@dataclass(frozen=True, slots=True)
class MicroConfiguration:
    """One algorithm measured at one micro-batch size.

    Args:
        micro_batch: the slice's length along N, at least 1.
        algorithm: the algorithm's name.
        time_ms: milliseconds of one run, finite and not negative.
        workspace: scratch bytes that the run needs, not negative.

    Raises:
        ValueError: a figure is out of range; the message has it.
    """

    micro_batch: int
    algorithm: str
    time_ms: float
    workspace: int

    def __post_init__(self) -> None:
        check_part(self, "micro_batch")

    @property
    def size(self) -> int:
        """The micro-batch size."""
        return self.micro_batch


class Sequential(Generic[P]):
    """Parts that run one after another on one workspace."""

    __slots__ = ()
    parts: tuple[P, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("a configuration needs at least one part")

    def __str__(self) -> str:
        """Return a text such as `4*16 WINOGRAD_NONFUSED`, different parts joined by ` + `."""
        return " + ".join(f"{times}*{part.size} {part.algorithm}" for times, part in self.grouped())

    @property
    def time_ms(self) -> float:
        """Milliseconds, the correctly rounded sum over the parts."""
        return math.fsum(part.time_ms for part in self.parts)

    @property
    def workspace(self) -> int:
        """Bytes, the maximum over the parts."""
        return max(part.workspace for part in self.parts)

    @property
    def slices(self) -> Slices:
        """The (size, algorithm) of each part, in order."""
        return tuple((part.size, part.algorithm) for part in self.parts)

    def grouped(self) -> list[tuple[int, P]]:
        """Return (how many, part) for each run of parts with equal size and algorithm, in order."""
        runs = [list(run) for _, run in groupby(self.parts, key=lambda part: (part.size, part.algorithm))]
        return [(len(run), run[0]) for run in runs]


@dataclass(frozen=True, slots=True)
class Configuration(Sequential[MicroConfiguration]):
    """Micro-configurations that run one after another on one workspace and add up to the mini-batch.

    Raises:
        ValueError: there are no parts.
    """

    parts: tuple[MicroConfiguration, ...]

    @property
    def mini_batch(self) -> int:
        """The sum of the parts' sizes."""
        return sum(part.micro_batch for part in self.parts)

    @property
    def is_divided(self) -> bool:
        """True if the mini-batch or a sample is divided."""
        return len(self.parts) > 1 or is_tiled(self.parts[0].algorithm)


class Infeasible(Exception):  # noqa: N818 (a fixed public name)
    """No choice fits the memory allowed.

    Attributes:
        limit: the allowed bytes, or None without a limit.
        need: the least bytes with which there is a choice, or None if no amount is enough.
    """

    def __init__(self, message: str, *, limit: int | None, need: int | None) -> None:
        super().__init__(message)
        self.limit = limit
        self.need = need


def faster(time_ms: float, than_ms: float) -> bool:
    """Return whether a time is less than another by more than TIE."""
    return time_ms < than_ms * (1 - TIE)


def pareto_front(candidates: Iterable[C]) -> list[C]:
    """Return the candidates that are faster than all earlier ones.

    Candidates come with workspace ascending and, for equal workspace, in the order of preference.
    """
    front: list[C] = []
    fastest = math.inf
    for candidate in candidates:
        time_ms = candidate.time_ms
        if faster(time_ms, fastest):
            front.append(candidate)
            fastest = time_ms
    return front

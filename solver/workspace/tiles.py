"""Tiles: the division of one sample along its depth or height."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .configuration import MicroConfiguration, Sequential, check_part
from .reuse import reuse_workspace


@dataclass(frozen=True, slots=True)
class Tile:
    """An algorithm measured on a tile, which is a part of one sample along its first spatial axis.

    Args:
        steps: the tile's length along that axis, at least 1.
        algorithm: the algorithm's name.
        time_ms: milliseconds of one run, finite and not negative.
        workspace: scratch bytes that the run needs, with the copies of the tile, not negative.

    Raises:
        ValueError: a figure is out of range; the message has it.
    """

    steps: int
    algorithm: str
    time_ms: float
    workspace: int

    def __post_init__(self) -> None:
        check_part(self, "steps")

    @property
    def size(self) -> int:
        """The length in steps."""
        return self.steps


@dataclass(frozen=True, slots=True)
class Tiling(Sequential[Tile]):
    """Tiles that run one after another on one workspace and add up to a sample, whose time they take.

    Raises:
        ValueError: there are no tiles.
    """

    parts: tuple[Tile, ...]

    @property
    def steps(self) -> int:
        """The sum of the tiles' steps."""
        return sum(tile.steps for tile in self.parts)


def tile_sample(measured: Iterable[Tile], steps: int, limit: int | None) -> Tiling:
    """Find the fastest tiling of a sample of `steps` steps within a limit in bytes.

    Tiles add up to a sample as micro-batches add up to the mini-batch, so `reuse_workspace` finds them.

    Raises:
        ValueError: `steps` is less than 1, or an algorithm occurs twice at one length.
        Infeasible: no tiling fits the limit.
    """
    parts = [
        MicroConfiguration(tile.steps, tile.algorithm, tile.time_ms, tile.workspace) for tile in measured
    ]
    division = reuse_workspace(parts, steps, limit)
    return Tiling(
        tuple(Tile(tile.micro_batch, tile.algorithm, tile.time_ms, tile.workspace) for tile in division.parts)
    )

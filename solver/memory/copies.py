"""The copies between device and host memory: the engines, single copies, and the steps that bound them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

PIECE = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Link:
    """The two copy engines between device and host memory.

    A tensor's memory is freed after its last piece and allocated before its first, as in PyTorch.

    Args:
        out_bandwidth: bytes per second from the device to the host.
        in_bandwidth: bytes per second from the host to the device.
        piece: the most bytes of one copy. The copy of another tensor can interrupt only between two pieces.
    """

    out_bandwidth: float
    in_bandwidth: float
    piece: int = PIECE

    def __post_init__(self) -> None:
        for name, value in (("out_bandwidth", self.out_bandwidth), ("in_bandwidth", self.in_bandwidth)):
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}, must be finite and above 0")
        if self.piece < 1:
            raise ValueError(f"piece is {self.piece}, must be at least 1")

    def milliseconds(self, sizes: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """Return the milliseconds of the copies of tensors of these sizes to the host and back."""
        return sizes * (1e3 / self.out_bandwidth + 1e3 / self.in_bandwidth)


@dataclass(frozen=True, slots=True)
class CopySteps:
    """The steps that bound the copies of an offloaded tensor; None for the default rules of `timeline`.

    Args:
        out_from: the copy out begins no earlier than this step.
        out_by: this step waits until the copy out has ended.
        in_from: the copy in begins no earlier than this step.
        in_by: this step waits until the copy in has ended.
    """

    out_from: int | None = None
    out_by: int | None = None
    in_from: int | None = None
    in_by: int | None = None


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a piece: the tensor, the direction, milliseconds since the training step began, bytes."""

    tensor: int
    direction: Literal["out", "in"]
    start_ms: float
    end_ms: float
    bytes: int

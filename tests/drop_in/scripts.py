"""Programs as data: calls of cuDNN with their arguments, made once and played by several libraries.

An argument is a tuple, its kind first:

    ("slot", name)              the descriptor or handle in a slot; NULL where there is none
    ("new", name)               where a Create function puts one
    ("null",)                   NULL
    ("int", value), ("long", value), ("double", value), ("bytes", value)
    ("ints", values)            an array of int
    ("scale", value, is_double) alpha or beta
    ("buffer", name)            a buffer's address; NULL where it has no bytes
    ("size", name)              a buffer's size
    ("array", type, values)     attributes of the graph API; also ("slot", name), ("buffer", name)
    ("into", names)             an array of descriptors that the library fills
    ("out", key, type, room)    an array to be written, of the graph API's types
    ("results", key, room)      an array of cudnnConvolution…AlgoPerf_t
    ("algorithm", key, which)   of the results of an earlier call: see Player.result

The key of an answer begins with "size:" where the drop-in may name other sizes than the library, and with
"free:" where nothing is compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Argument = tuple[Any, ...]


@dataclass(frozen=True)
class Work:
    """A convolution as it should come out, in terms of a script's buffers."""

    problem: str
    pass_: str
    alpha: float = 1.0
    beta: float = 0.0
    buffers: dict[str, str] = field(default_factory=dict)  # x, w, y, z, bias and operands: names of buffers
    fused: str | None = None  # of cudnnConvolutionBiasActivationForward: its activation


@dataclass(frozen=True)
class Call:
    """One call of a function that returns a status."""

    function: str
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...] = ()  # buffers that it writes
    work: Work | None = None
    type_: str = ""  # of outputs whose exact values are not known
    limit: str | None = None  # a buffer: no result may need more workspace than it has


@dataclass(frozen=True)
class Fill:
    """The content of a buffer: the same bytes for the same values."""

    kind: str  # "random", "whole" (small whole numbers), "nan" or "scratch"
    type_: str = "f32"
    seed: int = 0


@dataclass(frozen=True)
class Allocate:
    """A buffer, or another one of the same name.

    `size` is ("fixed", bytes), ("least" | "most" | "first" | "last", keys) of answers, or
    ("memory", key, which) of results.
    """

    name: str
    size: tuple[Any, ...]
    fill: Fill
    alignment: int = 16
    at_end: bool = True
    is_input: bool = False


@dataclass(frozen=True)
class Refill:
    name: str
    fill: Fill


@dataclass(frozen=True)
class Choose:
    """Puts the first of some descriptors into a slot whose answer is at most `cap`."""

    slot: str
    candidates: tuple[tuple[str, str], ...]  # slot and key of the answer
    cap: int


@dataclass(frozen=True)
class Threads:
    """Several scripts at the same time."""

    scripts: tuple[tuple[Step, ...], ...]


Step = Call | Allocate | Refill | Choose | Threads


class Script:
    """A program that is being written."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._number = 0

    def name(self, kind: str) -> str:
        """Return a name that no other slot, buffer or answer has."""
        self._number += 1
        return f"{kind}{self._number}"

    def call(self, function: str, *arguments: Argument, **more: Any) -> None:
        self.steps.append(Call(function, arguments, **more))

    def add(self, step: Step) -> None:
        self.steps.append(step)

"""Programs as data: calls of cuDNN with their arguments. Each program is played on several libraries.

An argument is a tuple that begins with its kind:

    ("slot", name)              the descriptor or handle in a slot, NULL if the slot is empty
    ("new", name)               the slot for the result of a Create function
    ("null",)                   NULL
    ("int", value), ("long", value), ("double", value), ("bytes", value)
    ("ints", values)            an array of int
    ("scale", value, is_double) alpha or beta
    ("buffer", name)            a buffer's address, NULL if it has no bytes
    ("size", name)              a buffer's size
    ("array", type, values)     attributes of the graph API; also ("slot", name), ("buffer", name)
    ("into", names)             an array of descriptors that the library fills
    ("out", key, type, room)    an array of `room` values that the library fills
    ("results", key, room)      an array of cudnnConvolution…AlgoPerf_t
    ("algorithm", key, which)   an algorithm of earlier results, see Player.result

The key of an answer begins with "size:" if the drop-in may name another size than the library, and with
"free:" if the answer is not compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Argument = tuple[Any, ...]


@dataclass(frozen=True)
class Work:
    """A convolution that a call must compute, on the buffers of a script."""

    problem: str
    pass_: str
    alpha: float = 1.0
    beta: float = 0.0
    buffers: dict[str, str] = field(default_factory=dict)  # the buffers of x, w, y, z, bias, operands
    fused: str | None = None  # the activation of cudnnConvolutionBiasActivationForward


@dataclass(frozen=True)
class Call:
    """One call of a function that returns a status."""

    function: str
    arguments: tuple[Argument, ...]
    outputs: tuple[str, ...] = ()  # the buffers that the call writes
    work: Work | None = None
    type_: str = ""  # the type of outputs without a known exact value
    limit: str | None = None  # a buffer that has enough workspace for each result


@dataclass(frozen=True)
class Fill:
    """The content of a buffer. Equal fills give equal bytes."""

    kind: str  # "random", "nan" or "scratch"
    type_: str = "f32"
    seed: int = 0


@dataclass(frozen=True)
class Allocate:
    """A step that allocates a buffer, or replaces that of the same name.

    `size` is ("fixed", bytes), ("least" | "most" | "first" | "last", keys) for answers, or
    ("memory", key, which) for results.
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
    """A step that fills a slot with the first of some descriptors whose answer is at most `cap`."""

    slot: str
    candidates: tuple[tuple[str, str], ...]  # slot and key of the answer
    cap: int


@dataclass(frozen=True)
class Threads:
    """A step that plays several scripts at the same time."""

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

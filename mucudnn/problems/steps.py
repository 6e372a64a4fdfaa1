"""Tensors, and the steps that read, write and save them."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mucudnn.errors import ArgumentTypeError, UsageError, shown
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.shapes import whole_number

# The bytes of one element.
DATA_TYPES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "f8": 1}
DATA_TYPES |= {"i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1}
FLOATING = ("f64", "f32", "f16", "bf16", "f8")

KINDS = ("activation", "input", "parameter", "buffer", "gradient", "output")
PRESENT = ("input", "parameter", "buffer")  # in memory before the first step
KEPT = (*PRESENT, "gradient", "output")  # in memory after the last step
UPDATED = ("parameter", "buffer")  # steps may write them at any time

_MOST = 2**63 - 1


@dataclass(frozen=True)
class Tensor:
    """A tensor in memory of its own, with the shape and the data type that give its bytes.

    A view, such as the result of `flatten`, is not a tensor of its own: steps read the tensor that it views.
    An in-place operation writes a new tensor in the memory of another, which `in_place_of` names.

    The kind says how long the tensor is in memory:

    - `activation`: from the step that writes it to its last use.
    - `gradient` (of a parameter) and `output`: from the step that writes it to the end.
    - `input`, `parameter` and `buffer`: always. An input belongs to the caller. A parameter that is not
      trained is a buffer.
    """

    name: str
    shape: tuple[int, ...]
    data_type: str = "f32"
    kind: str = "activation"
    in_place_of: str = ""

    def __post_init__(self) -> None:
        check_name("tensor", self.name)
        label = f"tensor {shown(self.name)}"
        if self.data_type not in DATA_TYPES:
            raise UsageError(
                f"{label} has the data type {shown(self.data_type)}: there are {', '.join(DATA_TYPES)}"
            )
        if self.kind not in KINDS:
            raise UsageError(f"{label} is of the kind {shown(self.kind)}: the kinds are {', '.join(KINDS)}")
        object.__setattr__(self, "shape", _exact_shape(label, self.shape))
        if self.in_place_of:
            check_name("tensor", self.in_place_of)
            if self.kind in PRESENT:
                raise UsageError(f"{label}, of the kind {self.kind}, cannot be in the memory of another")

    @property
    def bytes(self) -> int:
        """The bytes of memory that the tensor takes."""
        return math.prod(self.shape) * DATA_TYPES[self.data_type]


@dataclass(frozen=True)
class Step:
    """One operation: the tensors that it reads and writes, and which of them it saves for its backward step.

    `backward_of` names the step that it differentiates. `kernels` are its convolutions, which are named after
    the step, or after the step that it differentiates. `flops` counts other floating-point operations.
    """

    name: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    flops: int = 0
    backward_of: str = ""

    def __post_init__(self) -> None:
        check_name("step", self.name)
        label = f"step {shown(self.name)}"
        for verb in ("reads", "writes", "saves"):
            object.__setattr__(self, verb, _exact_names(f"{label} {verb}", getattr(self, verb)))
        for name in self.saves:
            if name not in (*self.reads, *self.writes):
                raise UsageError(f"{label} saves {shown(name)}, which it neither reads nor writes")
        if self.backward_of:
            check_name("step", self.backward_of)
        kernels = tuple(replace(kernel, name=self.backward_of or self.name) for kernel in self.kernels)
        for kernel in kernels:
            _check_kernel(label, kernel)
        object.__setattr__(self, "kernels", kernels)
        object.__setattr__(self, "flops", _exact_number(f"the number of flops of {label}", self.flops))


def check_name(noun: str, name: object) -> None:
    """Raise an error if a step or tensor cannot have this name."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"the name of a {noun} is {shown(name)}, not a text")
    if not name:
        raise UsageError(f"a {noun} has an empty name")
    if re.search("[\ud800-\udfff]", name):
        raise UsageError(f"the name of a {noun} is {shown(name)}, which has half of a surrogate pair")


def _exact_names(label: str, names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ArgumentTypeError(f"{label} {shown(names)}: give the names of tensors in a tuple")
    names = tuple(names)
    for name in names:
        check_name("tensor", name)
        if names.count(name) > 1:
            raise UsageError(f"{label} {shown(name)} twice")
    return names


def _exact_shape(label: str, shape: Iterable[object]) -> tuple[int, ...]:
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise ArgumentTypeError(f"the shape of {label} is {shown(shape)}, not a size for each axis")
    return tuple(_exact_number(f"a size of {label}", size) for size in shape)


def _exact_number(label: str, value: object) -> int:
    number = whole_number(value)
    if number is None:
        raise ArgumentTypeError(f"{label} is {shown(value)}, not a whole number")
    if not 0 <= number <= _MOST:
        raise UsageError(f"{label} is {shown(number)}: it must be at least 0 and below 2^63")
    return number


def _check_kernel(label: str, kernel: Kernel) -> None:
    if kernel.pass_ not in PASSES:
        raise UsageError(
            f"{label} has a kernel in the pass {shown(kernel.pass_)}: there are {', '.join(PASSES)}"
        )
    if kernel.problem.epilogue and kernel.pass_ != "forward":
        raise UsageError(f"{label} has a fused kernel in the pass {kernel.pass_}: it has a forward pass only")
    if kernel.count < 1:
        raise UsageError(f"{label} has a kernel {kernel.count} times: the count is at least 1")

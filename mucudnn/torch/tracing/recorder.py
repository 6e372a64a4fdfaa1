"""The record of a run on meta tensors: its operations, the memory that they use, and saved tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

from mucudnn.errors import UsageError
from mucudnn.problems import steps as nouns
from mucudnn.problems.kernels import Kernel
from mucudnn.torch.private import OpOverload, TorchDispatchMode, current_node, newest_node
from mucudnn.torch.tracing.saved import has_storage, key_of, reference, tensors_in
from mucudnn.torch.tracing.traced_kernels import copies_of, in_format_of_gpu, kernels_of

DATA_TYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
    torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
    torch.uint8: "u8", torch.bool: "bool",
}  # fmt: skip
NO_NODE = -3
FOR_EVER = 2**62


@dataclass
class Memory:
    """The memory of a storage, with the names of its tensors so far. The last one is its content."""

    shape: tuple[int, ...]
    data_type: str
    bytes: int
    kind: str = "activation"
    names: list[str] = field(default_factory=list)
    is_saved: bool = False
    held: int = -1  # the last forward operation during which the program held it

    @property
    def name(self) -> str:
        """The name of its content."""
        return self.names[-1]


@dataclass
class DraftStep:
    """A step that is being recorded. `node` is the number of its autograd node."""

    name: str
    module: str
    call: int
    node: int
    is_backward: bool = False
    reads: dict[str, None] = field(default_factory=dict)
    writes: dict[str, None] = field(default_factory=dict)
    saves: dict[str, None] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    flops: int = 0
    is_once: bool = False  # it must not run again


@dataclass(frozen=True)
class Pack:
    """A tensor as autograd saved it. `name` is its content then, `step` the number of earlier steps.

    `rebuild` returns a tensor without data that has its shape and its strides.
    """

    memory: Memory
    name: str
    step: int
    node: int
    module: str
    is_compiled: bool
    rebuild: Callable[[], Tensor]


class Recorder(TorchDispatchMode):
    """A mode that records every operation, in the modules that `enter` and `leave` report.

    `math` is the math mode of convolutions in fp32.
    """

    def __init__(self, math: str) -> None:
        super().__init__()
        self._math = math
        self.operations: list[DraftStep] = []
        self.memories: list[Memory] = []
        self.packs: list[Pack] = []
        self.unpacked: list[tuple[int, int]] = []  # (pack, step), in the order of unpacking
        # Parameters, buffers, inputs and already saved tensors that a forward step writes in place.
        self.changed: set[str] = set()
        self.fused: tuple[str, str] | None = None  # see `Trace`
        self.is_backward = False
        self.is_compiled = False  # while a module runs that torch.compile compiles in training
        self._known: dict[int, Memory] = {}
        self._references: list[Any] = []  # keep the addresses of storages from being reused
        self._held: list[tuple[Memory, Any]] = []  # activations that the program holds so far
        self._rebuilt: list[Tensor] = []
        self._is_rebuilding = False
        self._names: dict[tuple[str, str], int] = {}
        self._modules: list[tuple[str, int]] = [("", 0)]
        self._calls: dict[str, int] = {}
        self._called_again: dict[int, tuple[str, int]] = {}  # the module that made a node in a backward step

    def enter(self, module: str) -> None:
        """Record the start of a call to a module."""
        call = self._calls.get(module, 0)
        self._calls[module] = call + 1
        self._modules.append((module, call))

    def leave(self) -> None:
        """Note that the innermost module ends."""
        self._modules.pop()

    @property
    def module(self) -> str:
        """The qualified name of the innermost module."""
        return self._modules[-1][0]

    @property
    def place(self) -> str:
        """The innermost module, for an error message."""
        return f"module {self.module!r}" if self.module else "the model"

    def add_memory(self, tensor: Tensor, name: str, kind: str) -> None:
        """Add the memory of a parameter, a buffer or an input, unless it is known."""
        if self._find(tensor) is None:
            self._make_memory(tensor, self.unique(name), kind)

    def memory_of(self, tensor: Tensor) -> Memory | None:
        """Return the recorded memory of a tensor, or None if no operation wrote it."""
        return self._find(tensor) if has_storage(tensor) else None

    def unique(self, name: str, noun: str = "tensor") -> str:
        """Return the name, with a number if another tensor, or step, already has it."""
        count = self._names.get((noun, name), 0) + 1
        self._names[noun, name] = count
        return name if count == 1 else self.unique(f"{name}:{count}", noun)

    def pack(self, tensor: Tensor) -> tuple[int, Tensor | None]:
        """Record that autograd saves a tensor, and keep it unless it is an activation."""
        memory = self._find(tensor)
        if memory is None:  # no operation has written it, such as the empty tensor that a checkpoint saves
            memory = self._make_memory(tensor, self.unique(f"{self.module or 'model'}.saved"), "buffer")
        memory.is_saved = True
        place = tensor.shape, tensor.stride()
        self.packs.append(
            Pack(
                memory, memory.name, len(self.operations), newest_node(), self.module, self.is_compiled,
                partial(torch.empty_strided, *place, dtype=tensor.dtype, device=tensor.device),
            )
        )  # fmt: skip
        return len(self.packs) - 1, None if memory.kind == "activation" else tensor

    def unpack(self, packed: tuple[int, Tensor | None]) -> Tensor:
        """Record that autograd reads a saved tensor. Raises UsageError in the forward steps."""
        if not self.is_backward:
            raise UsageError(
                f"{self.place} computes gradients within its forward pass (torch.autograd.grad or backward), "
                "so saved tensors are needed again before the forward steps end: plan the parts of the model "
                "around that, each for itself"
            )
        number, tensor = packed
        operation = self._backward_operation()
        operation.reads[self.packs[number].memory.name] = None
        self.unpacked.append((number, len(self.operations) - 1))
        return self._rebuild(self.packs[number]) if tensor is None else tensor

    def end_forward(self) -> None:
        """Note that the backward steps begin. The program holds to the end what it still holds now."""
        self.is_backward = True
        self._note_released()
        for memory, _ in self._held:
            memory.held = FOR_EVER
        self._held.clear()

    def _note_released(self) -> None:
        """Note which activations the program no longer holds, before the next operation begins."""
        left = []
        for memory, kept in self._held:
            if kept.expired():
                memory.held = len(self.operations) - 1
            else:
                left.append((memory, kept))
        self._held = left

    def _rebuild(self, pack: Pack) -> Tensor:
        """Return a tensor without data for a tensor that autograd saved."""
        self._is_rebuilding = True
        try:
            tensor = pack.rebuild()
        finally:
            self._is_rebuilding = False
        self._rebuilt.append(tensor)
        self._known[key_of(tensor)] = pack.memory
        return tensor

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and record it."""
        kwargs = kwargs or {}
        if self._is_rebuilding:
            return function(*args, **kwargs)
        if not self.is_backward:
            self._note_released()
        result = in_format_of_gpu(function, args, function(*args, **kwargs))
        read = [self._find(tensor) for tensor in tensors_in((args, kwargs))]
        written = list(tensors_written(function, args, kwargs))
        if not self.is_backward:
            memories = map(self._find, written)
            self.changed |= {m.name for m in memories if m and (m.is_saved or m.kind in nouns.PRESENT)}
        new = [tensor for tensor in tensors_in(result) if self._find(tensor) is None]
        if "empty" in function.__name__ or not (new or written):
            return result  # new memory without content, or a view
        targets = map(self._find, written)
        if not new and all(memory is not None and memory.kind in nouns.UPDATED for memory in targets):
            return result  # a count of batches or a running mean
        operation = self._backward_operation() if self.is_backward else self._forward_operation(function)
        operation.is_once |= self.is_compiled or None in read or not can_run_again(function)
        for memory in filter(None, read):
            if memory.name not in operation.writes:
                operation.reads[memory.name] = None
        for tensor in written:
            self._write_in_place(operation, tensor)
        for tensor in [*new, *copies_of(function, args)]:
            if self._find(tensor) is None:
                name = self.unique(operation.name if not self.is_backward else f"{operation.name}.result")
                operation.writes[self._make_memory(tensor, name, "activation").name] = None
        operation.kernels += kernels_of(function, args, operation.module, self._math)
        if not operation.kernels:
            operation.flops += _count_flops(function, args, kwargs, result)
        return result

    def _find(self, tensor: Tensor) -> Memory | None:
        """Return the memory of a tensor, if it is known. Raises UsageError for a tensor without a storage."""
        if not has_storage(tensor):
            raise UsageError(
                f"{self.place} uses a tensor of the layout {tensor.layout}, whose memory cannot be planned: "
                "use dense tensors there, or plan the parts of the model around that, each for itself"
            )
        return self._known.get(key_of(tensor))

    def _make_memory(self, tensor: Tensor, name: str, kind: str) -> Memory:
        kept = reference(tensor)
        self._references.append(kept)
        size = tensor.untyped_storage().nbytes()
        shape, data_type = tuple(tensor.shape), DATA_TYPES.get(tensor.dtype, "u8")
        if math.prod(shape) * nouns.DATA_TYPES[data_type] != size:
            shape, data_type = (size,), "u8"
        memory = Memory(shape, data_type, size, kind, [name])
        self._known[key_of(tensor)] = memory
        self.memories.append(memory)
        if kind == "activation" and not self.is_backward:
            self._held.append((memory, kept))
        return memory

    def _write_in_place(self, operation: DraftStep, tensor: Tensor) -> None:
        """Record that an operation writes over a tensor."""
        memory = self._find(tensor)
        if memory is None:
            memory = self._make_memory(tensor, self.unique(operation.name), "activation")
            operation.writes[memory.name] = None
        elif memory.kind == "activation" and not memory.is_saved and memory.name not in operation.writes:
            memory.names.append(self.unique(operation.name))
            operation.writes[memory.name] = None

    def _forward_operation(self, function: Any) -> DraftStep:
        module, call = self._modules[-1]
        operator = function.__name__.partition(".")[0].strip("_")
        last = self.operations[-1] if self.operations else None
        is_first = last is None or (last.module, last.call) != (module, call)
        name = module if is_first and module else f"{module}.{operator}" if module else operator
        operation = DraftStep(self.unique(name, "step"), module, call, newest_node())
        self.operations.append(operation)
        return operation

    def _backward_operation(self) -> DraftStep:
        """Return the step of the autograd node that runs."""
        node = current_node()
        number = node._sequence_nr() if node is not None else NO_NODE
        running = self._modules[-1]  # a checkpoint calls modules again
        if running[0]:
            self._called_again[newest_node()] = running
        last = self.operations[-1]
        if last.is_backward and last.node == number and running in (("", 0), (last.module, last.call)):
            return last
        forward = next((o for o in self.operations if o.node == number and not o.is_backward), None)
        kind = "sum" if node is None else node.name().rpartition(":")[2]
        name = f"{forward.name}.backward" if forward else kind
        operation = DraftStep(self.unique(name, "step"), "", 0, number, is_backward=True)
        if running[0]:
            operation.module, operation.call = running
        elif forward is not None:
            operation.module, operation.call = forward.module, forward.call
        else:
            operation.module, operation.call = self._called_again.get(number, ("", 0))
        self.operations.append(operation)
        return operation


@cache
def _places_written(function: Any) -> tuple[tuple[int, str], ...]:
    """Return the positions and names of the arguments that an operation writes to, by its schema."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(function._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def tensors_written(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Yield the arguments that an operation writes to."""
    for place, name in _places_written(function):
        yield from tensors_in(args[place] if place < len(args) else kwargs.get(name))


@cache
def can_run_again(function: Any) -> bool:
    """Return whether an operation gives the same result again and does nothing else.

    Among PyTorch's operations these are the ones that draw no random numbers and fill what they return, among
    mucudnn's the convolutions. Other libraries' operations may have a state.
    """
    return (
        isinstance(function, OpOverload)
        and function.name().startswith(("aten::", "mucudnn::convolution_"))
        and torch.Tag.nondeterministic_seeded not in function.tags
        and "empty" not in function.__name__
    )


def _count_flops(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    formula = flop_registry.get(function._overloadpacket)
    if formula is None:
        return 0
    return int(formula(*args, **kwargs, out_val=result))

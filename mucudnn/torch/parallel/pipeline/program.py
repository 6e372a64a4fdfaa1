"""The operations of a model in the order in which it runs them, and a stage, which runs some of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate

from mucudnn.torch.private import tree_map
from mucudnn.torch.tracing.saved import tensors_in


@dataclass(frozen=True)
class Value:
    """An input of the model, or a tensor that an operation returns, by its number."""

    number: int


@dataclass(frozen=True)
class Part:
    """A module, a parameter or a buffer, by its name in the model."""

    name: str


@dataclass(frozen=True)
class Samples:
    """An integer that depends on the samples of a micro-batch: `factor` times their number, and `rest`."""

    factor: int
    rest: int


@dataclass(frozen=True)
class StageDevice:
    """The device of the stage that runs."""


Call: TypeAlias = tuple[Callable[..., Any] | Part, tuple[Any, ...], Mapping[str, Any]]
"""A recorded call: a function or the name of a module, its arguments, and its named arguments.

`Value`, `Part`, `Samples` and `StageDevice` stand in it for what differs between micro-batches and stages.
"""


@dataclass(frozen=True)
class Operation:
    """A call of a module or of a function on tensors.

    Attributes:
        name: the name of the module, or that of the function with the module whose code calls it.
        call: the call.
        results: the numbers of the tensors in the result.
        has_gradients: False if the model turns gradients off around the call.
    """

    name: str
    call: Call
    results: tuple[int, ...]
    has_gradients: bool

    def __deepcopy__(self, _: Any) -> "Operation":
        """Return itself, because it does not change."""
        return self


@dataclass
class Program:
    """The operations of a model.

    Attributes:
        inputs: the names of the model's inputs, if they are passed by name.
        operations: the operations.
        output: what the model returns, as the arguments in a `Call`.
        values: the outlines of all values for the example; the inputs come first.
        samples: for each value whose axis 0 tells the number of samples, its size for each sample.
        memories: keys of the values' memory, which are the same for a tensor and its views.
        last_changes: the last operation that changes a memory in place.
        whole: the modules with inner modules that are single operations, with the reasons.
        asks_for_one: whether the model's code asks if there is one sample; more are assumed.
    """

    inputs: tuple[str, ...]
    operations: list[Operation] = field(default_factory=list)
    output: Any = None
    values: list[Tensor] = field(default_factory=list)
    samples: dict[int, int] = field(default_factory=dict)
    memories: dict[int, int] = field(default_factory=dict)
    last_changes: dict[int, int] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    asks_for_one: bool = False


class SplitStage(nn.Module):
    """A stage whose parameters and buffers have their names in the whole model.

    Attributes:
        split_received: the numbers of the values that the stage takes.
        split_operations: the operations that the stage runs. (The model's modules have most other names.)
        split_names: the names of its modules and tensors.

    Args:
        model: the model.
        program: its operations.
        received: the numbers of the values that the stage takes.
        operations: the operations that it runs.
        output: what it returns, as `Program.output`.
        unused: the names of weights that belong to no operation.
    """

    def __init__(
        self,
        model: nn.Module,
        program: Program,
        received: Sequence[int],
        operations: Sequence[Operation],
        output: Any,
        unused: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self._program, self._output = program, output
        self.split_received = tuple(received)
        self.split_operations = tuple(operations)
        self._place = next(place for place, value in enumerate(received) if value in program.samples)
        self._needed = needed_values(operations, output)[1:]
        calls = [operation.call for operation in operations]
        self.split_names = sorted({*unused, *(part.name for part in references((calls, output), Part))})
        for name in self.split_names:
            add_at(self, name, model)

    def forward(self, *args: Tensor, **kwargs: Tensor) -> Any:
        """Return what the next stage takes, or what the model returns."""
        tensors = [*args, *(kwargs[name] for name in self._program.inputs if kwargs)]
        values = dict(zip(self.split_received, tensors, strict=True))
        samples = len(tensors[self._place]) // self._program.samples[self.split_received[self._place]]

        def resolve(leaf: Any) -> Any:
            if isinstance(leaf, Value):
                return values[leaf.number]
            if isinstance(leaf, Part):
                return attrgetter(leaf.name)(self)
            if isinstance(leaf, Samples):
                return leaf.factor * samples + leaf.rest
            return tensors[0].device if isinstance(leaf, StageDevice) else leaf

        for operation, needed in zip(self.split_operations, self._needed, strict=True):
            function, arguments, named = map_aggregate(operation.call, resolve)
            with torch.set_grad_enabled(operation.has_gradients and torch.is_grad_enabled()):
                result = function(*arguments, **named)
            values.update(zip(operation.results, tensors_in(result), strict=True))
            del arguments, named, result
            for number in values.keys() - needed:
                del values[number]
        return tree_map(resolve, self._output)


def references(value: Any, kind: type) -> list[Any]:
    """Return all instances of a class, such as `Value`, in calls and outputs."""
    found: list[Any] = []
    map_aggregate(value, lambda leaf: found.append(leaf) if isinstance(leaf, kind) else None)
    return found


def values_in(value: Any) -> set[int]:
    """Return the numbers of the values in calls or outputs."""
    return {reference.number for reference in references(value, Value)}


def needed_values(operations: Sequence[Operation], output: Any) -> list[list[int]]:
    """Return for each operation, and for the end, the earlier values that are needed from there on."""
    needed = [sorted(values_in(output))]
    for operation in reversed(operations):
        needed.append(sorted(set(needed[-1]).difference(operation.results) | values_in(operation.call)))
    return needed[::-1]


def add_at(tree: nn.Module, name: str, source: nn.Module) -> None:
    """Add a module or a tensor of a module to another one under the same name, inside plain modules."""
    path, _, own = name.rpartition(".")
    for part in filter(None, path.split(".")):
        if part not in tree._modules:
            tree.add_module(part, nn.Module())
        tree = tree.get_submodule(part)
    thing, owner = attrgetter(name)(source), source.get_submodule(path)
    if isinstance(thing, nn.Module):
        tree.add_module(own, thing)
    elif isinstance(thing, nn.Parameter):
        tree.register_parameter(own, thing)
    else:
        tree.register_buffer(own, thing, own not in owner._non_persistent_buffers_set)

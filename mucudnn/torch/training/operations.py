"""The operations of a forward pass, noted so that the ones that made a saved tensor can run again.

A noted operation refers to the tensors that it read by storage and content. Each operation that writes to a
storage, also in place, gives it a new content. No tensor is held except parameters, buffers, inputs, and
small tensors that autograd holds anyway.

Whatever else a module does in its forward pass, such as counting its calls, does not happen again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _pop_mode_temporarily,
)

from mucudnn.torch.tracing.recorder import can_run_again, tensors_written
from mucudnn.torch.tracing.saved import (
    SavedView,
    Storage,
    check_size,
    check_version,
    has_storage,
    key_of,
    reference,
    tensors_in,
)

MOST_OPERATIONS = 16  # the most that one recomputation runs

Content: TypeAlias = "tuple[int, int]"
"""A storage's key, and the number of the operation that wrote it, which is UNKNOWN if it was not noted."""

UNKNOWN = -1
NO_CONTENT: Content = (UNKNOWN, UNKNOWN)


@dataclass(slots=True)
class Read:
    """A view of a content that an operation read. It is NO_CONTENT without a view if nothing can be noted."""

    content: Content
    view: SavedView | None


@dataclass(slots=True)
class Own:
    """A view of a parameter, a buffer or an input that an operation read."""

    tensor: Tensor
    version: int
    view: SavedView


@dataclass(slots=True)
class Noted:
    """An operation with its arguments, and the storages of its results and of what it wrote in place.

    `own` are the parameters, buffers and inputs that it read, `reads` its other tensors.
    """

    number: int
    function: Any
    args: list[Any]
    kwargs: dict[str, Any]
    own: list[Own] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    results: tuple[int, ...] = ()
    in_place: frozenset[int] = frozenset()


@dataclass
class OperationRecipe:
    """The way to compute a storage again: operations in order, and the storages that they start from."""

    operations: Sequence[Noted]
    sources: dict[Content, Callable[[], Storage]]
    content: Content
    size: int
    _last: dict[Content, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for noted in self.operations:
            self._last |= {read.content: noted.number for read in noted.reads}

    def run(self) -> Storage:
        """Return the storage, computed again.

        Raises RuntimeError if a parameter or an input has changed, MucudnnError if the result has another
        size.
        """
        storages: dict[Content, Storage] = {content: get() for content, get in self.sources.items()}
        with torch.no_grad(), torch.autocast("cuda", enabled=False):
            for noted in self.operations:
                self._run(noted, storages)
                unneeded = [c for c in storages if self._last.get(c, math.inf) <= noted.number]
                for content in unneeded:
                    if content != self.content:
                        del storages[content]
        return check_size(storages[self.content], self.size)

    def _run(self, noted: Noted, storages: dict[Content, Storage]) -> None:
        is_norm = "batch_norm" in noted.function.__name__

        def prepare(leaf: Any) -> Any:
            if isinstance(leaf, Own):
                check_version(leaf.tensor, leaf.version)
                x = leaf.view.of(leaf.tensor.untyped_storage())
                # A batch norm updates its statistics, although its schema does not say so.
                return x.clone() if is_norm else x
            if not isinstance(leaf, Read):
                return leaf
            storage = storages[leaf.content]
            if leaf.content[0] in noted.in_place and leaf.content in self.sources:
                storage = storage.clone()
                storages[leaf.content] = storage
            assert leaf.view is not None  # a recipe has only known contents
            return leaf.view.of(storage)

        args = _mapped(prepare, noted.args)
        kwargs = {name: _mapped(prepare, value) for name, value in noted.kwargs.items()}
        result = noted.function(*args, **kwargs)
        for key, tensor in zip(noted.results, _stored(result), strict=True):
            storages[key, noted.number] = tensor.untyped_storage()
        for read in noted.reads:
            if read.content[0] in noted.in_place:
                storages[read.content[0], noted.number] = storages[read.content]


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Return an argument changed, or each element of a list; PyTorch's trees would take far longer."""
    if isinstance(value, list | tuple):
        return [_mapped(change, element) for element in value]
    return change(value)


class Operations(TorchDispatchMode):
    """A mode that notes all operations. `own` are parameters, buffers and inputs by storage key."""

    def __init__(self, own: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._own = own
        self._noted: list[Noted] = []
        self._writers: dict[int, int] = {}
        self._references: dict[int, Any] = {}  # keep the keys of storages from being reused
        self._held: dict[Content, Callable[[], Storage]] = {}
        self._is_paused = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let PyTorch 2.9 compile in a context of `left`: it compiles nothing else once a mode has begun."""
        return True

    def content_of(self, tensor: Tensor) -> Content:
        """Return the current content of a tensor's storage."""
        key = key_of(tensor)
        return key, self._writers.get(key, UNKNOWN)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Note all operations in a context, and forget them at its end."""
        try:
            with self:
                yield
        finally:
            self._noted.clear()
            self._writers.clear()
            self._references.clear()
            self._held.clear()

    def hold(self, tensor: Tensor) -> None:
        """Make a small tensor that autograd saves a source of all recomputations."""
        version = tensor._version

        def get() -> Storage:
            check_version(tensor, version)
            return tensor.untyped_storage()

        self._held[self.content_of(tensor)] = get

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Note no operations in a context in which the runtime runs its own."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    @contextmanager
    def left(self, *arguments: Any) -> Iterator[None]:
        """Leave the mode in a context, because compiled code does not run in one.

        Of its arguments, those that change get a content that is not known.
        """
        versions = [(tensor, tensor._version) for tensor in _stored(arguments)]
        with _pop_mode_temporarily() if _get_current_dispatch_mode() is self else nullcontext():
            yield
        for tensor, version in versions:
            if tensor._version != version:
                self._writers.pop(key_of(tensor), None)

    def find(
        self, content: Content, size: int, sources: dict[Content, Callable[[], Storage]]
    ) -> OperationRecipe | None:
        """Return the way to compute a content again from the sources and the tensors that are held, or None.

        None stands for operations that must not run again, or that read a buffer, a parameter or an input
        that has changed since.
        """
        numbers: set[int] = set()
        used: dict[Content, Callable[[], Storage]] = {}
        wanted = [content]
        while wanted:
            needed = wanted.pop()
            source = sources.get(needed) or self._held.get(needed)
            if source is not None:
                used[needed] = source
                continue
            number = needed[1]
            if number == UNKNOWN or not self._is_repeatable(self._noted[number]):
                return None
            if number not in numbers:
                numbers.add(number)
                wanted += [read.content for read in self._noted[number].reads]
            if len(numbers) > MOST_OPERATIONS:
                return None
        operations = [self._noted[number] for number in sorted(numbers)]
        return OperationRecipe(operations, used, content, size)

    def _is_repeatable(self, noted: Noted) -> bool:
        return can_run_again(noted.function) and all(
            own.version == own.tensor._version
            and self._writers.get(key_of(own.tensor), UNKNOWN) < noted.number
            for own in noted.own
        )

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and note it."""
        kwargs = kwargs or {}
        if self._is_paused:
            return function(*args, **kwargs)
        noted = Noted(len(self._noted), function, [], {})
        note = partial(self._note_read, noted)
        noted.args = _mapped(note, args)
        noted.kwargs = {name: _mapped(note, value) for name, value in kwargs.items()}
        written = {key_of(tensor) for tensor in tensors_written(function, args, kwargs)}
        before = {read.content[0] for read in noted.reads}
        before.update(key_of(own.tensor) for own in noted.own)
        result = function(*args, **kwargs)
        tensors = _stored(result)
        keys = tuple(map(key_of, tensors))
        if written or not before.issuperset(keys):  # other operations return views
            noted.results, noted.in_place = keys, frozenset(written)
            self._noted.append(noted)
            for key, tensor in zip(keys, tensors, strict=True):
                self._references[key] = reference(tensor)
            self._writers |= dict.fromkeys((*written, *keys), noted.number)
        return result

    def _note_read(self, noted: Noted, value: Any) -> Any:
        """Return what stands for a value among the arguments. A reference would keep a tensor's memory."""
        if isinstance(value, Tensor) and has_storage(value):
            own = self._own.get(key_of(value))
            if own is not None:
                noted.own.append(Own(own, own._version, SavedView(value)))
                return noted.own[-1]
            noted.reads.append(Read(self.content_of(value), SavedView(value)))
            return noted.reads[-1]
        if isinstance(value, Tensor | torch.UntypedStorage):
            noted.reads.append(Read(NO_CONTENT, None))
            return noted.reads[-1]
        return value


def _stored(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):  # The search of a tree takes far longer.
        return [values] if has_storage(values) else []
    return [tensor for tensor in tensors_in(values) if has_storage(tensor)]

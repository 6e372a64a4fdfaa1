"""Recomputation: a saved tensor is dropped, and the modules that made it run again when it is needed.

A tensor is dropped only if the storages that the modules read and wrote in the forward pass show that the
planned modules made it from the planned source.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mucudnn.torch.tracing.saved import SavedView, Storage, check_size, check_version, has_storage, reference


@dataclass
class Call:
    """The last call to a module: the tensor that it read, and after its end the tensor that it returned."""

    read: Any  # a weak reference to the storage
    read_version: int
    view: SavedView
    is_training: bool
    autocast: tuple[bool, Any]
    written: Any = None
    written_version: int = -1

    @property
    def is_open(self) -> bool:
        """True while the module runs."""
        return self.written is None


@dataclass
class Recipe:
    """The way to compute a tensor again: modules that run one after another, beginning with the source."""

    modules: Sequence[nn.Module]
    calls: Sequence[Call]
    source: Callable[[], Storage]
    size: int
    versions: list[tuple[Tensor, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for module in self.modules:
            self.versions += [(parameter, parameter._version) for parameter in module.parameters()]

    def run(self) -> Storage:
        """Return the storage of the tensor, computed again.

        Raises RuntimeError if a parameter has changed, MucudnnError if the result has another size.
        """
        for parameter, version in self.versions:
            check_version(parameter, version)
        enabled, dtype = self.calls[0].autocast
        x = self.calls[0].view.of(self.source())
        if getattr(self.modules[0], "inplace", False):
            x = x.clone()
        with torch.no_grad(), torch.autocast(x.device.type, dtype, enabled, cache_enabled=False):
            for module, call in zip(self.modules, self.calls, strict=True):
                with _without_effects(module, call.is_training):
                    x = module.forward(x)
        return check_size(x.untyped_storage(), self.size)


@contextmanager
def _without_effects(module: nn.Module, is_training: bool) -> Iterator[None]:
    """Put a module into its mode of the forward pass for a context, with copies of its buffers to update."""
    before = [(part, part.training, dict(part._buffers)) for part in module.modules()]
    try:
        for part, _, buffers in before:
            part.training = is_training
            part._buffers.update(
                {name: buffer.clone() for name, buffer in buffers.items() if buffer is not None}
            )
        yield
    finally:
        for part, training, buffers in before:
            part.training = training
            part._buffers.update(buffers)


def has_hooks(module: nn.Module) -> bool:
    """Return whether a hook other than that of Calls may change what a module reads or returns."""
    return bool(
        module._forward_pre_hooks.keys() - {_KEY}
        or module._forward_hooks.keys() - {_KEY}
        or nn.modules.module._global_forward_pre_hooks
        or nn.modules.module._global_forward_hooks
    )


_KEY = "mucudnn"  # the key of our hooks in the dictionaries of hooks that each module has
_thread = threading.local()  # its `calls` are those of the forward pass that the thread runs


def _begin(module: nn.Module, args: Any) -> None:
    if not torch.compiler.is_compiling() and (calls := getattr(_thread, "calls", None)) is not None:
        calls.begin(module, args)


def _end(module: nn.Module, args: Any, output: Any) -> None:
    if not torch.compiler.is_compiling() and (calls := getattr(_thread, "calls", None)) is not None:
        calls.end(module, output)


class Calls:
    """The modules that run, and the last calls of those that recomputations need.

    `on_close` is called after each call of such a module. `is_compiled` is true while a module of `compiled`
    runs, which torch.compile compiles. Nothing within it is followed.
    """

    def __init__(
        self,
        names: dict[nn.Module, str],
        compiled: Collection[nn.Module],
        replayed: frozenset[str],
        on_close: Callable[[], None],
    ) -> None:
        self._names, self._compiled, self._replayed, self._on_close = names, compiled, replayed, on_close
        self._running: list[str] = []
        self._last: dict[str, Call] = {}
        self.is_compiled = False

    @property
    def innermost(self) -> str:
        """The name of the innermost module that runs, or an empty text outside of all modules."""
        return self._running[-1] if self._running else ""

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Follow all calls to the named modules in a context.

        The hooks belong to the modules and are always the same functions under the same key, because a
        compiler compiles a module again when its hooks change, or when there are global ones.
        """
        for module in self._names:
            module._forward_pre_hooks[_KEY] = _begin
            module._forward_hooks[_KEY] = _end
            module._forward_hooks_always_called[_KEY] = True
        _thread.calls = self
        try:
            with self._watching_compiled():
                yield
        finally:
            _thread.calls = None
            for module in self._names:
                for hooks in (
                    module._forward_pre_hooks, module._forward_hooks, module._forward_hooks_always_called
                ):  # fmt: skip
                    hooks.pop(_KEY, None)
            self._running.clear()
            self._last.clear()

    @contextmanager
    def _watching_compiled(self) -> Iterator[None]:
        """Keep `is_compiled` up to date in a context, by wrapping what calls to compiled modules run."""
        before: list[tuple[dict[str, Any], str, Any]] = []
        for module in self._compiled:
            place = "forward" if module._compiled_call_impl is None else "_compiled_call_impl"
            before.append((vars(module), place, vars(module)[place]))
            vars(module)[place] = partial(self._run_compiled, vars(module)[place])
        try:
            yield
        finally:
            for attributes, place, function in before:
                attributes[place] = function

    def _run_compiled(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.is_compiled = True
        try:
            return function(*args, **kwargs)
        finally:
            self.is_compiled = False

    def find(self, names: Sequence[str], source: Any, version: int | None) -> list[Call] | None:
        """Return the modules' last calls if they read a source and then each other's results, else None.

        `version` is the version of the source, or None for any.
        """
        chain: list[Call] = []
        for name in names:
            call = self._last.get(name)
            if call is None or call.read.cdata != source.cdata or version not in (None, call.read_version):
                return None
            chain.append(call)
            if call.is_open:
                return chain if name == names[-1] else None
            source, version = call.written, call.written_version
        return chain

    def begin(self, module: nn.Module, args: Any) -> None:
        """Record the start of a call to a module."""
        name = self._names.get(module)
        if name is None:
            return
        self._running.append(name)
        if name in self._replayed:
            self._last.pop(name, None)
            if len(args) == 1 and isinstance(args[0], Tensor) and has_storage(args[0]):
                (x,) = args
                kind = x.device.type
                autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
                self._last[name] = Call(reference(x), x._version, SavedView(x), module.training, autocast)

    def end(self, module: nn.Module, output: Any) -> None:
        """Record the end of a call to a module, and the version of its result."""
        name = self._names.get(module)
        if name is None or not self._running:
            return
        self._running.pop()
        call = self._last.get(name)
        if call is not None:
            if isinstance(output, Tensor) and has_storage(output):
                call.written, call.written_version = reference(output), output._version
                self._on_close()
            else:
                del self._last[name]

"""The record of the operations of an unchanged model, in which modules that cannot be recorded stay whole."""

import logging
import pickle
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.pipeline.arguments import Arguments
from mucudnn.torch.parallel.pipeline.program import Operation, Part, Program, Samples, StageDevice, Value
from mucudnn.torch.parallel.pipeline.stages import unchanged, unchanged_surroundings
from mucudnn.torch.private import symbolic_mode, tree_map, without_fake_mode
from mucudnn.torch.tracing.saved import tensors_in


def record(model: nn.Module, example: Arguments) -> Program:
    """Return the operations of a model, which are the same in training and in evaluation, and under autocast.

    The model's own code runs on tensors without values, whose number of samples is a symbol. Modules without
    inner modules are single operations, and so are modules whose code does what a stage could not repeat: it
    branches on values or on the number of samples, asks for its mode, sets attributes, draws random numbers
    outside of PyTorch, or makes tensors that `__torch_function__` does not see.

    Args:
        model: the model, whose state stays as it is.
        example: the arguments with which it is called.

    Raises:
        UsageError: the code of the model itself, outside of its modules, does any of this.
    """
    try:
        with unchanged(model, example.tensors[0].device), torch.enable_grad():
            return _Recorder(model, example).record()
    except Exception as error:  # the model's code may raise any error
        raise UsageError(
            f"the forward method of {type(model).__name__} cannot be recorded, so cut the model by hand: "
            f"{_reason(error)}"
        ) from error


class _UnrepeatableError(Exception):
    """The model's code does what a stage could not repeat."""


def _reason(error: Exception) -> str:
    if type(error).__name__.startswith("DataDependent"):
        return "it needs the values of tensors"
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, _UnrepeatableError) else f"{type(error).__name__}: {text}"


class _Recorder(TorchFunctionMode):
    """A mode of PyTorch that records one run of a model."""

    def __init__(self, model: nn.Module, example: Arguments) -> None:
        super().__init__()
        self._model, self._example = model, example
        tensors = dict([*model.named_parameters(), *model.named_buffers()])
        is_meta = any(tensor.is_meta for tensor in tensors.values())
        self._device = torch.device("meta") if is_meta else example.tensors[0].device
        self._paths = {module: name for name, module in model.named_modules()}
        self._inside, self._is_in_operation = [""], False
        self._failure: Exception | None = None
        self._references: dict[int, Value | Part] = {
            id(tensor): Part(name) for name, tensor in tensors.items()
        }
        self._kept: list[Tensor] = []  # so that no id stands for two tensors
        self._versions: dict[int, int] = {}
        self._mode, self._samples = symbolic_mode(self._check_question)
        self._program = Program(example.names or ())

    def record(self) -> Program:
        """Return the operations. Raises _UnrepeatableError, or an error of the model's code."""
        with self._mode:
            inputs = self._example.map(
                lambda x: torch.empty(
                    self._samples, *x.shape[1:], dtype=x.dtype, device=self._device
                ).requires_grad_(x.requires_grad)
            )
            self._number(inputs.tensors)
            with self._patches(), self, self._repeatable():
                result = inputs.call(self._model)
        self._program.output = tree_map(self._encode, result)
        return self._program

    @contextmanager
    def _patches(self) -> Iterator[None]:
        """Note calls of modules in the block, and refuse what no stage could repeat."""
        call = nn.Module.__call__

        def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self._call(partial(call, module), module, args, kwargs)

        def is_training(module: nn.Module) -> Any:
            self._refuse("it asks whether it is training")
            return vars(module)["training"]

        def train(module: nn.Module, mode: bool) -> None:
            vars(module)["training"] = mode

        def refusing(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
            def refused(*args: Any, **kwargs: Any) -> Any:
                self._refuse(reason)
                return function(*args, **kwargs)

            return refused

        apply = refusing(vars(torch.autograd.Function)["apply"].__func__, "it uses an autograd function")
        with ExitStack() as stack:
            for owner, name, replacement in (
                (nn.Module, "__call__", run),
                (nn.Module, "__setattr__", refusing(nn.Module.__setattr__, "it sets an attribute")),
                (nn.Module, "training", property(is_training, train)),
                (torch.autocast, "__enter__", refusing(torch.autocast.__enter__, "it sets autocast")),
                (torch, "is_autocast_enabled", refusing(torch.is_autocast_enabled, "it asks for autocast")),
                (torch.autograd.Function, "apply", classmethod(apply)),
                (logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True),
            ):
                stack.enter_context(mock.patch.object(owner, name, replacement, create=True))
            yield

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Return a function's result, and record it if it returns tensors or changes one."""
        kwargs = kwargs or {}
        if self._is_in_operation:
            return func(*args, **kwargs)
        if func == torch.Tensor.requires_grad.__get__:
            self._refuse("it asks whether a tensor requires a gradient")
        result = self._run(func, args, kwargs, is_module=False)
        if tensors_in(result) or (result is None and tensors_in((args, kwargs))):
            name = func.__name__ + (self._inside[-1] and f" in {self._inside[-1]}")
            self._add(name, (func, args, kwargs), result)
        return result

    def _call(self, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Return the result of a module: what its code returns, or that of an operation for the module."""
        name, whole = self._paths.get(module), self._program.whole
        if self._is_in_operation or not name:
            return call(*args, **kwargs)
        if name not in whole and next(module.children(), None) is not None:
            count, references = len(self._program.operations), dict(self._references)
            self._inside.append(name)
            try:
                with self._repeatable():
                    result = call(*args, **kwargs)
                    list(map(self._encode, tensors_in(result)))
                return result
            except Exception as error:  # the module's code may raise any error
                whole[name] = _reason(error)
                self._failure = None
                del self._program.operations[count:]
                self._references = references
            finally:
                self._inside.pop()
        with unchanged_surroundings(self._device):
            result = self._run(call, args, kwargs, is_module=True)
        with self._operation():
            self._add(name, (Part(name), args, kwargs), result)
        return result

    def _run(self, function: Callable[..., Any], args: Any, kwargs: Any, is_module: bool) -> Any:
        """Return a function's result. If it needs values, two runs with values tell the result's sizes."""
        failure, results = self._failure, dict[int, Tensor]()
        with self._operation():
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if not (is_module or isinstance(error, _UnrepeatableError)):
                    self._failure = error  # noted, because the model's code may catch it
                    raise
                runs = []
                with without_fake_mode():
                    for samples in (4, 5):
                        a, k = map_aggregate((args, kwargs), partial(self._with_values, samples=samples))
                        runs.append(function(*a, **k))
                if not tensors_in(runs):
                    raise
            self._failure = failure
            for four, five in zip(*map(tensors_in, runs), strict=True):
                factors = [b - a for a, b in zip(four.shape, five.shape, strict=True)]
                shape = [
                    self._samples * factor + (size - 4 * factor)
                    for size, factor in zip(four.shape, factors, strict=True)
                ]
                result = torch.empty(shape, dtype=four.dtype, device=four.device)
                results[id(four)] = result.requires_grad_(four.requires_grad)
            return tree_map(lambda leaf: results.get(id(leaf), leaf), runs[0])

    def _with_values(self, leaf: Any, samples: int) -> Any:
        """Return an argument with values for a number of samples."""
        if isinstance(leaf, torch.SymInt):
            count = self._count(leaf)
            return count.factor * samples + count.rest
        if not isinstance(leaf, Tensor):
            return leaf
        shape = [self._with_values(size, samples) for size in leaf.shape]
        return torch.ones(shape, dtype=leaf.dtype, device=leaf.device, requires_grad=leaf.requires_grad)

    def _refuse(self, reason: str) -> None:
        """Raise an error in the model's code, which is noted because the code may catch it."""
        if not self._is_in_operation:
            self._failure = _UnrepeatableError(reason)
            raise self._failure

    def _operation(self) -> AbstractContextManager[Any]:
        """Record nothing in the block, which runs inside a single operation."""
        return mock.patch.object(self, "_is_in_operation", True)

    @contextmanager
    def _repeatable(self) -> Iterator[None]:
        """Raise an error if the code in the block does what a stage could not repeat."""

        def state() -> bytes:
            return pickle.dumps((torch.is_grad_enabled(), random.getstate(), np.random.get_state()))

        with unchanged_surroundings(self._device):
            before = state()
            yield
            if self._failure is not None:
                raise self._failure
            if state() != before:
                raise _UnrepeatableError("it leaves gradients off, or draws random numbers without PyTorch")

    def _check_question(self, wants_number: bool, is_known: bool) -> None:
        """Refuse a decision of the model's code that depends on the number of samples.

        PyTorch's own operators may compare the number, but nothing may read it.
        """
        if wants_number:
            raise _UnrepeatableError("it needs to know the number of samples")
        if not self._is_in_operation:
            if not is_known:
                self._refuse("it branches on the number of samples")
            self._program.asks_for_one = True

    def _add(self, name: str, call: Sequence[Any], result: Any) -> None:
        """Record a call and its result."""
        tensors = tensors_in(result)
        for tensor in tensors_in((call, tensors)):
            memory = _memory_of(tensor)
            if tensor._version != self._versions.get(memory, 0):
                self._versions[memory] = tensor._version
                self._program.last_changes[memory] = len(self._program.operations)
        function, args, kwargs = call
        encoded = map_aggregate((function, tuple(args), dict(kwargs)), self._encode)
        numbers = self._number(tensors)
        self._program.operations.append(Operation(name, encoded, numbers, torch.is_grad_enabled()))

    def _number(self, tensors: Sequence[Tensor]) -> tuple[int, ...]:
        """Return numbers for tensors that an operation returns."""
        first = len(self._kept)
        for number, tensor in enumerate(tensors, first):
            # First the shape, because its size may be refused, after which the module stays whole.
            shape = tuple(self._with_values(size, self._example.samples) for size in tensor.shape)
            self._kept.append(tensor)
            self._references[id(tensor)] = Value(number)
            self._program.memories[number] = _memory_of(tensor)
            with without_fake_mode():
                outline = torch.empty(shape, dtype=tensor.dtype, device="meta")
            self._program.values.append(outline.requires_grad_(tensor.requires_grad))
            count = self._encode(tensor.shape[0]) if shape else None
            if isinstance(count, Samples) and count.rest == 0:
                self._program.samples[number] = count.factor
        return tuple(range(first, len(self._kept)))

    def _encode(self, leaf: Any) -> Any:
        """Return what stands for a value in a call. Raises _UnrepeatableError."""
        if isinstance(leaf, Tensor):
            reference = self._references.get(id(leaf), leaf)
            if reference is leaf and isinstance(leaf, type(self._kept[0])):
                raise _UnrepeatableError(
                    "it uses a tensor from an operation that torch functions do not show"
                )
            return reference
        if isinstance(leaf, torch.SymInt | torch.SymFloat):
            return self._count(leaf)
        return StageDevice() if isinstance(leaf, torch.device) and leaf == self._device else leaf

    def _count(self, size: Any) -> Samples:
        """Return how a size depends on the number of samples. Raises _UnrepeatableError."""
        symbol, expression = self._samples.node.expr, size.node.expr
        factor = expression.diff(symbol)
        if not factor.is_Integer:
            raise _UnrepeatableError(f"it computes {expression}, where {symbol} is the number of samples")
        return Samples(int(factor), int(expression.subs(symbol, 0)))


def _memory_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)

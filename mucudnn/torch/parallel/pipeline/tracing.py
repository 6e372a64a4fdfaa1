"""The graph of an unchanged model, from `torch.fx`, in which modules that cannot be traced stay whole."""

import inspect
import operator
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.pipeline.arguments import Arguments
from mucudnn.torch.parallel.pipeline.stages import in_mode, unchanged, unchanged_surroundings


def trace_graph(model: nn.Module, example: Arguments) -> fx.Graph:
    """Return the graph of a model, which is the same in training and in evaluation, and under autocast.

    Modules of `torch.nn` are single nodes, and so are modules whose code does what a graph does not record:
    it branches on values or on the mode, sets attributes, draws random numbers without a tensor, or has
    regions without gradients or with another autocast.

    Args:
        model: the model, whose attributes change: tensors that its code creates are added to it.
        example: the arguments with which it is called.

    Raises:
        UsageError: the model itself branches on its mode or on autocast, outside of its modules.
        Exception: its code fails on proxies, or does anything else that a graph does not record.
    """
    whole: set[str] = set()
    device = example.tensors[0].device
    while True:
        known = len(whole)
        # A region that turns autocast off shows only while autocast is on.
        autocast = torch.autocast(device.type, enabled=not torch.is_autocast_enabled(device.type))
        with unchanged(model, device), in_mode([model], False), autocast, _constant_attributes():
            evaluation = _Tracer(example, whole).trace(model)
        with in_mode([model], True), _constant_attributes():
            training = _Tracer(example, whole).trace(model)
        if len(whole) > known:
            continue
        different = _first_difference(training, evaluation)
        if different is None:
            return training
        if not different:
            raise UsageError(
                f"the forward method of {type(model).__name__} differs between training and evaluation, or "
                "with autocast, so its stages would have a single mode: move what differs into a module, or "
                "cut it by hand"
            )
        whole.add(different)


class _Proxy(fx.Proxy):
    """A value in a traced model. `fx.Proxy` would record `x += y` as an addition that does not change x."""


def _in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    function = getattr(operator, name)
    return lambda self, other: self.tracer.create_proxy("call_function", function, (self, other), {})


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul"):
    setattr(_Proxy, f"__i{_name}__", _in_place(f"i{_name}"))


class _Tracer(fx.Tracer):
    """A tracer that keeps a module whole if its code fails on proxies.

    Args:
        example: the arguments; parameters without an argument have their default values.
        whole: the names of the modules to keep whole, to which it adds those whose code fails.
    """

    proxy_buffer_attributes = True

    def __init__(self, example: Arguments, whole: set[str]) -> None:
        super().__init__()
        self._example, self._whole, self._inside = example, whole, [""]
        self._device = example.tensors[0].device
        self._surroundings = self._read_surroundings()

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return the function to trace, and its arguments: the model and a proxy for each input."""
        count = len(self._example.tensors)
        parameters = list(inspect.signature(root_fn).parameters)[1:]
        names = self._example.names or [*parameters, *(f"input_{i}" for i in range(count))][:count]
        inputs = [self.create_proxy("placeholder", name, (), {}) for name in names]

        def run(root: nn.Module, *proxies: Any) -> Any:
            return self._example.but(proxies).call(partial(root_fn, root))

        return run, [self.root, *inputs]

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the value of a node."""
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module stays a single node."""
        if m._backward_hooks or m._backward_pre_hooks:  # the hooks do not know proxies
            return True
        return module_qualified_name in self._whole or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Return a new node, which remembers the innermost module whose code makes it."""
        self._check_surroundings()
        node = super().create_node(*args, **kwargs)
        node.meta["inside"] = self._inside[-1]
        return node

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the result of a module: what its code returns, or that of a node for the whole module."""
        name = self.path_of_module(m)
        if self.is_leaf_module(m, name):
            return super().call_module(m, forward, args, kwargs)
        before = len(self.graph.nodes)
        self._inside.append(name)
        try:
            with unchanged_surroundings(self._device):
                result = super().call_module(m, forward, args, kwargs)
                self._check_surroundings()
                return result
        except Exception:  # the module's code may raise any error about a proxy
            self._whole.add(name)
            for node in list(self.graph.nodes)[: before - 1 : -1]:
                self.graph.erase_node(node)
        finally:
            self._inside.pop()
        return self.create_proxy("call_module", name, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, fx.Proxy]) -> Any:
        """Return an attribute of a module, a new node for each use of a tensor, because nodes are erased."""
        return super().getattr(attr, attr_val, {})

    def _check_surroundings(self) -> None:
        """Raise TraceError if the model's code has changed what a graph does not record."""
        if self._read_surroundings() != self._surroundings:
            raise fx.proxy.TraceError(
                "it turns gradients or autocast on or off, or draws random numbers without a tensor"
            )

    def _read_surroundings(self) -> object:
        return (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled(self._device.type),
            torch.get_autocast_dtype(self._device.type),
            pickle.dumps((random.getstate(), np.random.get_state(), torch.get_rng_state().numpy())),
        )


@contextmanager
def _constant_attributes() -> Iterator[None]:
    """Raise TraceError meanwhile if a model's code sets an attribute of a module."""
    set_attribute = nn.Module.__setattr__

    def refuse(module: nn.Module, name: str, value: Any) -> None:
        if not name.startswith("_tensor_constant"):  # the tracer sets it
            raise fx.proxy.TraceError(f"it sets {name} of a {type(module).__name__}")
        set_attribute(module, name, value)

    nn.Module.__setattr__ = refuse
    try:
        yield
    finally:
        nn.Module.__setattr__ = set_attribute


def _first_difference(first: fx.Graph, second: fx.Graph) -> str | None:
    """Return the module with the first node that is not in both graphs, or None if they are equal."""
    for a, b in zip(first.nodes, second.nodes, strict=False):  # both end with their outputs
        if (a.op, a.target, str(a.args), str(a.kwargs)) != (b.op, b.target, str(b.args), str(b.kwargs)):
            return str(min((a.meta["inside"], b.meta["inside"]), key=len))
    return None

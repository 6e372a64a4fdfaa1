"""The graph of an unchanged model, from `torch.fx`, in which modules that cannot be traced stay whole."""

import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch import fx, nn

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.pipeline.stages import in_mode


def trace_graph(model: nn.Module, example: tuple[tuple[Any, ...], dict[str, Any]]) -> fx.Graph:
    """Return the graph of a model, which is the same in training mode and in evaluation mode.

    Modules of `torch.nn` are single nodes, and so are modules whose code branches on values or on the mode.

    Args:
        model: the model.
        example: the arguments with which it is called, by position and by name.

    Raises:
        UsageError: the model itself branches on values or on its mode, outside of its modules.
    """
    whole: set[str] = set()
    while True:
        graphs = []
        for training in (True, False):
            with in_mode([model], training):
                graphs.append(_Tracer(example, whole).trace(model))
        different = _first_difference(*graphs)
        if different is None:
            return graphs[0]
        if not different:
            raise UsageError(
                f"the forward method of {type(model).__name__} differs between training and evaluation, "
                "so its stages would have a single mode: move what differs into a module, or cut it by hand"
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
        whole: the names of further modules to keep whole.
    """

    def __init__(self, example: tuple[tuple[Any, ...], dict[str, Any]], whole: Iterable[str]) -> None:
        super().__init__()
        self._example, self._whole, self._inside = example, whole, [""]

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Return the function to trace, and its arguments: the model and a proxy for each input."""
        positional, named = self._example
        parameters = list(inspect.signature(root_fn).parameters)[1:]
        names = [*parameters, *(f"input_{i}" for i in range(len(positional)))][: len(positional)]
        inputs = [self.create_proxy("placeholder", name, (), {}) for name in (*names, *named)]

        def run(root: nn.Module, *proxies: Any) -> Any:
            by_name = dict(zip(named, proxies[len(positional) :], strict=True))
            return root_fn(root, *proxies[: len(positional)], **by_name)

        return run, [self.root, *inputs]

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Return the value of a node."""
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module stays a single node."""
        return module_qualified_name in self._whole or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Return a new node, which remembers the innermost module whose code makes it."""
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
            return super().call_module(m, forward, args, kwargs)
        except Exception:  # the module's code may raise any error about a proxy
            for node in list(self.graph.nodes)[: before - 1 : -1]:
                self.graph.erase_node(node)
            self._inside.pop()
            self._inside.append(self._inside[-1])
            return self.create_proxy("call_module", name, args, kwargs)
        finally:
            self._inside.pop()


def _first_difference(first: fx.Graph, second: fx.Graph) -> str | None:
    """Return the module with the first node that is not in both graphs, or None if they are equal."""
    for a, b in zip(first.nodes, second.nodes, strict=False):
        if a.format_node() != b.format_node():
            return str(min((a.meta["inside"], b.meta["inside"]), key=len))
    return None if len(first.nodes) == len(second.nodes) else ""

"""Run a convolution as one with the module that alone reads its result: a batch norm, or on a GPU a ReLU.

It does so without gradients, in an `nn.Sequential` and where the source of a block's method shows the pair.
`convert` gives each module that has such a pair a subclass of its own class. In eval mode a batch norm is
folded into the convolution's weights. The modules themselves stay as they were: whoever calls one of them
gets its own result.
"""

from functools import wraps
from inspect import getattr_static
from itertools import pairwise, starmap, zip_longest
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules_of_torch

from mucudnn.torch.layers import folding
from mucudnn.torch.layers.converted import CONVERTED, RESTORED, run_with_relu
from mucudnn.torch.layers.joined_calls import RUN_PAIR, Pair, find_pairs, joined
from mucudnn.torch.operators import passes

_NORMS: dict[type, type] = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_HOOKS_ON_ALL = [getattr(modules_of_torch, f"_global{name}") for name in _HOOKS]
_OWN_CLASS = "_mucudnn_own_class"  # the attribute of a subclass that names the class it is made of
# The names of a class's methods, each with the pairs that it runs as one; empty for an nn.Sequential.
Methods = frozenset[tuple[str, frozenset[Pair]]]
_classes: dict[tuple[type, Methods], type] = {}


def join_pairs(module: nn.Module) -> None:
    """Let a module run each converted convolution as one with the module that alone reads its result."""
    own: Any = type(module)
    if not _can_subclass(own):
        return
    if own.forward is nn.Sequential.forward:
        methods, has_pairs = Methods(), any(starmap(_is_pair, pairwise(module._modules.values())))
    else:
        methods = _find_methods(module)
        has_pairs = bool(methods)
    if has_pairs:
        module.__class__ = _class_of(own, methods)


def restore(module: nn.Module) -> None:
    """Give a module its own class again, and free the folded weights of a convolution."""
    folding.forget(module)
    own = vars(type(module)).get(_OWN_CLASS)
    if own is not None:  # a class that FSDP made of this one stays
        module.__class__ = own


def _is_norm_of(convolution: nn.Module | None, norm: nn.Module | None) -> bool:
    """Return whether these are a converted convolution and a batch norm for its results."""
    own = RESTORED.get(type(convolution))
    return own is not None and _NORMS[own] is type(norm)


def _is_pair(convolution: nn.Module | None, following: nn.Module | None) -> bool:
    """Return whether these are a converted convolution and a module that may run with it."""
    return type(convolution) in RESTORED and (
        type(following) is nn.ReLU or _is_norm_of(convolution, following)
    )


def _find_methods(module: nn.Module) -> Methods:
    """Return the methods of a module, such as `forward`, that call pairs which may run as one."""
    own, found = type(module), set[tuple[str, frozenset[Pair]]]()
    for name in {name for base in own.__mro__ if base not in (nn.Module, object) for name in vars(base)}:
        method = getattr_static(own, name)
        if type(method) is FunctionType and not module._modules.keys().isdisjoint(method.__code__.co_names):
            pairs = frozenset(pair for pair in find_pairs(method) if _has_pair(module, pair))
            found |= {(name, pairs)} if pairs else set()
    return frozenset(found)


def _has_pair(module: nn.Module, pair: Pair) -> bool:
    try:
        return _is_pair(module.get_submodule(pair.inner), module.get_submodule(pair.outer))
    except AttributeError:  # None, or not a module
        return False


def _can_subclass(own: Any) -> bool:
    """Return whether a subclass that only calls modules at once does what the class does."""
    return (
        own.__call__ is nn.Module.__call__
        and own.__reduce_ex__ is object.__reduce_ex__
        and own.__reduce__ is object.__reduce__
        and type(own) is type
        and not any("__init_subclass__" in vars(base) for base in own.__mro__[:-1])
        and not hasattr(own, _OWN_CLASS)
    )


def _class_of(own: Any, methods: Methods) -> type:
    """Return the subclass whose methods run these pairs as one; without any, an nn.Sequential's."""
    if (own, methods) in _classes:
        return _classes[own, methods]
    runs: dict[str, Any] = {name: joined(getattr(own, name), pairs) for name, pairs in methods}

    def reduce(self: Any, protocol: Any) -> Any:
        reduced: Any = object.__reduce_ex__(self, 1)  # the later protocols name no maker
        make, (_, *more), *state = reduced
        return _remake, (own, methods, make, *more), *state

    names = {"__reduce_ex__": reduce, "__module__": own.__module__, "__qualname__": own.__qualname__}
    names |= {"__doc__": own.__doc__, _OWN_CLASS: own, RUN_PAIR: staticmethod(_run_pair)}
    for name, run in (runs or {"forward": _run_sequential}).items():
        names[name] = _run_own_while_compiling(run, getattr(own, name))
    _classes[own, methods] = type(own.__name__, (own,), names)
    return _classes[own, methods]


def _run_own_while_compiling(run_joined: Any, run_own: Any) -> Any:
    @wraps(run_own)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = run_own if torch.compiler.is_compiling() else run_joined
        return run(self, *args, **kwargs)

    return method


def _remake(own: Any, methods: Methods, make: Any, *more: Any) -> Any:
    # The class may have changed since it was pickled.
    is_known = all(pairs <= find_pairs(getattr(own, name, None)) for name, pairs in methods)
    return make(_class_of(own, methods) if is_known else own, *more)


def _run_pair(outer: Any, inner: Any, input: Any) -> Any:
    """Return outer(inner(input))."""
    return _run_modules((inner, outer), input)


def _run_sequential(sequential: nn.Module, input: Any) -> Any:
    return _run_modules(tuple(sequential._modules.values()), input)


def _run_modules(modules: tuple[Any, ...], input: Any) -> Any:
    """Run modules one after another, a convolution and what follows it as one."""
    has_run = False  # the module ran with the convolution before it
    for module, following in zip_longest(modules, modules[1:]):
        if has_run:
            has_run = False
            continue
        result = _run_as_one(module, following, input) if _is_pair(module, following) else None
        has_run = result is not None
        input = module(input) if result is None else result
    return input


def _run_as_one(convolution: Any, following: Any, input: Any) -> Tensor | None:
    """Return the result of a pair that runs as one; None if each is to run by itself."""
    is_norm = type(following) is not nn.ReLU
    if is_norm and (following.training or convolution.training):
        folding.forget(convolution)
        return None
    if (
        type(input) is not Tensor
        or input.is_cpu is not is_norm
        or _is_observed(convolution, following, input)
    ):
        return None
    if is_norm:
        weights = folding.weights_for(convolution, following, input)
        return None if weights is None else convolution._conv_forward(input, *weights)
    is_converted = type(convolution) in CONVERTED.values() and convolution._mucudnn is not None
    return run_with_relu(convolution, input) if is_converted else None


def _is_observed(convolution: Any, following: Any, input: Tensor) -> bool:
    """Return whether autograd, a hook, a tracer or a torch function mode must see the two modules run apart.

    Each line adds to the time of every call.
    """
    if torch.is_grad_enabled() or torch._C._len_torch_function_stack():
        return True
    for module in (convolution, following):
        own = vars(module)
        if "forward" in own or (
            own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or own["_backward_hooks"]
            or own["_backward_pre_hooks"]
        ):
            return True
    return any(_HOOKS_ON_ALL) or passes.is_followed(input, input, None)

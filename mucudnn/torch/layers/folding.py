"""Run a convolution and the module behind it as one, without gradients: a batch norm, or on a GPU a ReLU.

Only in an `nn.Sequential` is that module known to be the one reader of the convolution's result. So `convert`
gives each Sequential that has such a pair a subclass of its own class, which runs both at once. In eval mode
a batch norm is folded into the convolution's weights. The modules themselves stay as they were: whoever calls
one of them gets its own result.

Folded weights are kept until a parameter or a buffer that they are made of changes. A GPU's cannot be
compared in each call without waiting for it, so they are not folded.
"""

from itertools import pairwise, starmap, zip_longest
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules_of_torch

from mucudnn.torch.layers.converted import CONVERTED, RESTORED, run_with_relu
from mucudnn.torch.operators import kept_filters, passes

_NORMS: dict[type, type] = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}
_TYPES = (torch.float32, torch.float64)  # 16-bit weights would be rounded twice
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class _Snapshot(NamedTuple):
    """A tensor that folded weights are made of, and its state at that time."""

    tensor: Tensor
    version: int
    address: int
    values: npt.NDArray[Any]  # in the tensor's own memory
    places: tuple[npt.NDArray[np.intp], ...]  # one value of each channel
    sample: bytes  # the values at these places

    @property
    def is_current(self) -> bool:
        """True unless the tensor has changed. Only the values show changes by way of `.data`."""
        tensor = self.tensor
        is_same = tensor._version == self.version and tensor.data_ptr() == self.address
        return is_same and self.values[self.places].tobytes() == self.sample


class _Fold(NamedTuple):
    """The weights of a convolution with a batch norm folded in; None if they are not finite."""

    sources: tuple[_Snapshot | None, ...]  # None for a bias or a factor that the modules lack
    weights: tuple[nn.Parameter, nn.Parameter] | None
    eps: float

    def is_of(self, tensors: tuple[Tensor | None, ...], eps: float) -> bool:
        """Return whether the fold was made of these tensors as they are now."""
        if eps != self.eps:
            return False
        for source, tensor in zip(self.sources, tensors, strict=True):
            if source is None or tensor is None:
                if source is not tensor:
                    return False
            elif source.tensor is not tensor or not source.is_current:
                return False
        return True


_folds: WeakKeyDictionary[nn.Module, WeakKeyDictionary[nn.Module, _Fold]] = WeakKeyDictionary()
_classes: dict[type, type] = {}  # the subclass of each class of Sequential
_FOLDING = "_mucudnn_folds_class"  # the attribute of a subclass that names the class it is made of


def join_pairs(module: nn.Module) -> None:
    """Let a Sequential run its converted convolutions with what follows; leave other modules alone."""
    own = type(module)
    if (
        _can_subclass(own)
        and "forward" not in vars(module)
        and any(starmap(_is_pair, pairwise(module._modules.values())))
    ):
        module.__class__ = _class_of(own)


def restore(module: nn.Module) -> None:
    """Give a Sequential its own class again, and free the folded weights of a convolution."""
    _folds.pop(module, None)
    own = getattr(type(module), _FOLDING, None)
    if own is not None:
        module.__class__ = own


def size(convolution: nn.Module | None = None) -> int:
    """Return the bytes of the folded weights of a convolution or of all, with the filters kept of these."""
    known = [*_folds.values()] if convolution is None else [_folds.get(convolution) or WeakKeyDictionary()]
    weights = [weight for folds in known for fold in [*folds.values()] for weight in fold.weights or ()]
    return sum(weight.nbytes + kept_filters.size(weight) for weight in weights)


def _is_norm_of(convolution: nn.Module | None, norm: nn.Module | None) -> bool:
    """Return whether these are a converted convolution and a batch norm for its results."""
    own = RESTORED.get(type(convolution))
    return own is not None and _NORMS[own] is type(norm)


def _is_pair(convolution: nn.Module | None, following: nn.Module | None) -> bool:
    """Return whether these are a converted convolution and a module that may run with it."""
    return type(convolution) in RESTORED and (
        type(following) is nn.ReLU or _is_norm_of(convolution, following)
    )


def _can_subclass(own: Any) -> bool:
    """Return whether the class is a plain Sequential or a subclass with the same forward and pickling."""
    return (
        issubclass(own, nn.Sequential)
        and own.forward is nn.Sequential.forward
        and own.__call__ is nn.Module.__call__
        and own.__reduce_ex__ is object.__reduce_ex__
        and own.__reduce__ is object.__reduce__
        and type(own) is type
        and not any("__init_subclass__" in vars(base) for base in own.__mro__[:-1])
        and not hasattr(own, _FOLDING)
    )


def _class_of(own: Any) -> type:
    if own not in _classes:
        run_own = own.forward

        def forward(self: Any, input: Any) -> Any:
            if torch.compiler.is_compiling():
                return run_own(self, input)
            return _run_modules(self, input)

        def reduce(self: Any, protocol: Any) -> Any:
            reduced: Any = object.__reduce_ex__(self, 1)  # the later protocols name no maker
            make, (_, *more), *state = reduced
            return _remake, (own, make, *more), *state

        names = {"forward": forward, "__reduce_ex__": reduce, "__module__": own.__module__, _FOLDING: own}
        names |= {"__qualname__": own.__qualname__, "__doc__": own.__doc__}
        _classes[own] = type(own.__name__, (own,), names)
    return _classes[own]


def _remake(own: type, make: Any, *more: Any) -> Any:
    return make(_class_of(own), *more)


def _run_modules(sequential: nn.Module, input: Any) -> Any:
    """Run the modules of a Sequential one after another, a convolution and what follows it as one."""
    children = list(sequential._modules.values())
    has_run = False  # the module ran with the convolution before it
    for module, following in zip_longest(children, children[1:]):
        if has_run:
            has_run = False
            continue
        if type(following) is nn.ReLU and _may_fuse(module, following, input):
            input, has_run = run_with_relu(module, input), True
            continue
        weights = _weights_for(module, following, input) if _is_norm_of(module, following) else None
        has_run = weights is not None
        input = module(input) if weights is None else module._conv_forward(input, *weights)
    return input


def _may_fuse(convolution: Any, relu: nn.Module, input: Any) -> bool:
    """Return whether cuDNN may run a convolution and a ReLU at once, in a call that nothing observes."""
    if type(input) is not Tensor or not input.is_cuda or type(convolution) not in CONVERTED.values():
        return False
    settings = convolution._mucudnn
    return (
        settings is not None
        and not torch.is_grad_enabled()
        and not passes.is_followed(input, convolution.weight, None)
        and not _has_hooks(convolution, relu)
        and torch._C._len_torch_function_stack() == 0
    )


def _weights_for(convolution: Any, norm: Any, input: Any) -> tuple[nn.Parameter, nn.Parameter] | None:
    """Return the folded weight and bias for a call; None if both modules are to run on their own."""
    if norm.training or convolution.training:
        _folds.pop(convolution, None)
        return None
    settings = convolution._mucudnn
    if torch.is_grad_enabled() or settings is None or settings.promise_text or settings.handle is not None:
        return None
    tensors = (
        convolution.weight, convolution.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var,
    )  # fmt: skip
    if not _can_fold(convolution, norm, input, tensors):
        return None
    folds = _folds.get(convolution)
    fold = None if folds is None else folds.get(norm)
    if fold is None or not fold.is_of(tensors, norm.eps):
        fold = _make_fold(tensors, norm.eps)
        _folds.setdefault(convolution, WeakKeyDictionary())[norm] = fold
        kept_filters.forget(convolution.weight)
    return fold.weights


def _can_fold(convolution: Any, norm: Any, input: Any, tensors: tuple[Any, ...]) -> bool:
    weight, *vectors = tensors
    return (
        type(input) is Tensor
        and input.is_cpu
        and not passes.is_followed(input, weight, None)  # a tracer would follow the comparisons below
        and type(weight) is nn.Parameter
        and norm.running_mean is not None
        and norm.running_var is not None
        and weight.dtype in _TYPES
        and input.dtype is weight.dtype
        and input.dim() == weight.dim()
        and all(vector is None or vector.shape == weight.shape[:1] for vector in vectors)
        and not torch.is_autocast_enabled("cpu")
        and all(
            tensor is None
            or (
                type(tensor) in passes.PLAIN
                and tensor.is_cpu
                and tensor.dtype is weight.dtype
                and tensor.layout is torch.strided
                and not tensor.is_inference()
            )
            for tensor in tensors
        )
        and not _has_hooks(convolution, norm)
        and torch._C._len_torch_function_stack() == 0
    )


def _has_hooks(*modules: Any) -> bool:
    """Return whether a hook sees a call to one of the modules, or the module has a `forward` of its own."""
    return any(
        "forward" in vars(module) or any(getattr(module, name) for name in _HOOKS) for module in modules
    ) or any(getattr(modules_of_torch, f"_global{name}", None) for name in _HOOKS)


def _make_fold(tensors: tuple[Tensor | None, ...], eps: float) -> _Fold:
    weight, bias, factor, shift, mean, variance = tensors
    assert weight is not None
    assert mean is not None
    assert variance is not None
    sources = tuple(None if tensor is None else _take_snapshot(tensor) for tensor in tensors)
    with torch.inference_mode(False), torch.no_grad():
        scale = (variance.double() + eps).rsqrt()
        if factor is not None:
            scale = scale * factor.double()
        moved = -mean.double() if bias is None else bias.double() - mean.double()
        offset = moved * scale if shift is None else moved * scale + shift.double()
        folded = (weight.double() * scale.view(-1, *(1,) * (weight.dim() - 1))).to(weight.dtype)
        offset = offset.to(weight.dtype)
        if not (folded.isfinite().all() and offset.isfinite().all()):
            return _Fold(sources, None, eps)
        own = torch.empty_like(weight).copy_(folded)  # with the weight's strides
        weights = tuple(nn.Parameter(tensor, requires_grad=False) for tensor in (own, offset))
    return _Fold(sources, (weights[0], weights[1]), eps)


def _take_snapshot(tensor: Tensor) -> _Snapshot:
    with torch.inference_mode(False):
        values = tensor.detach().numpy()
    channels, size = len(values), values[0].size
    # An odd step, so that the channels differ in the place of their value.
    offsets = np.unravel_index(np.arange(channels) * 40503 % size, values.shape[1:] or (1,))
    places = (np.arange(channels), *offsets[: values.ndim - 1])
    return _Snapshot(tensor, tensor._version, tensor.data_ptr(), values, places, values[places].tobytes())

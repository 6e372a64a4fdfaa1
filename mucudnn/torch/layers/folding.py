"""Fold a batch norm in eval mode into the weights of the convolution in front of it.

Folded weights are kept until a parameter or a buffer that they are made of changes. A GPU's cannot be
compared in each call without waiting for it, so they are not folded.
"""

from operator import is_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from mucudnn._native import ValueSample
from mucudnn.torch.operators import kept_filters, passes

_TYPES = (torch.float32, torch.float64)  # 16-bit weights would be rounded twice
Tensors = tuple[Tensor | None, ...]


class _Fold(NamedTuple):
    """The weights of a convolution with a batch norm folded in; None if they are not finite.

    The other fields show whether the tensors that it is made of have changed. Only a sample of their
    elements shows changes by way of `.data`.
    """

    weights: tuple[nn.Parameter, nn.Parameter] | None
    tensors: Tensors  # None for a bias or a factor that the modules lack
    states: list[tuple[int, int]]
    sample: ValueSample
    eps: float

    def is_of(self, tensors: Tensors, eps: float) -> bool:
        """Return whether the fold was made of these tensors as they are now."""
        return (
            all(map(is_, tensors, self.tensors))
            and eps == self.eps
            and _states(tensors) == self.states
            and self.sample.is_current()
        )


_folds: WeakKeyDictionary[nn.Module, WeakKeyDictionary[nn.Module, _Fold]] = WeakKeyDictionary()


def forget(convolution: nn.Module) -> None:
    """Free the weights of a convolution into which batch norms are folded."""
    _folds.pop(convolution, None)


def size(convolution: nn.Module | None = None) -> int:
    """Return the bytes of the folded weights of a convolution or of all, with the filters kept of these."""
    known = [*_folds.values()] if convolution is None else [_folds.get(convolution) or WeakKeyDictionary()]
    weights = [weight for folds in known for fold in [*folds.values()] for weight in fold.weights or ()]
    return sum(weight.nbytes + kept_filters.size(weight) for weight in weights)


def weights_for(convolution: Any, norm: Any, input: Tensor) -> tuple[nn.Parameter, nn.Parameter] | None:
    """Return the folded weight and bias for a call of a converted convolution; None if the norm is to run.

    The call needs no gradients, and nothing observes it.
    """
    settings = convolution._mucudnn
    if settings is None or settings.promise_text or settings.handle is not None:
        return None
    if not input.is_cpu or torch.is_autocast_enabled("cpu"):
        return None
    try:
        # Reading them as attributes takes longer than to compare them.
        own, factors, statistics = convolution._parameters, norm._parameters, norm._buffers
        weight = own["weight"]
        tensors = (
            weight, own["bias"], factors["weight"], factors["bias"],
            statistics["running_mean"], statistics["running_var"],
        )  # fmt: skip
    except KeyError:  # something replaced a parameter, such as pruning
        return None
    if weight is None or input.dtype is not weight.dtype or input.dim() != weight.dim():
        return None
    folds = _folds.get(convolution)
    fold = None if folds is None else folds.get(norm)
    if fold is None or not fold.is_of(tensors, norm.eps):
        if not _can_fold(tensors):
            return None
        fold = _make_fold(tensors, norm.eps)
        _folds.setdefault(convolution, WeakKeyDictionary())[norm] = fold
        kept_filters.forget(weight)
    return fold.weights


def _can_fold(tensors: tuple[Any, ...]) -> bool:
    weight, *vectors = tensors
    return (
        type(weight) is nn.Parameter
        and weight.dtype in _TYPES
        and weight.numel() > 0
        and all(statistic is not None for statistic in vectors[3:])
        and all(vector is None or vector.shape == weight.shape[:1] for vector in vectors)
        and all(
            tensor is None
            or (
                type(tensor) in passes.PLAIN
                and tensor.is_cpu
                and tensor.dtype is weight.dtype
                and tensor.layout is torch.strided
                and _is_packed(tensor)
                and not tensor.is_inference()
            )
            for tensor in tensors
        )
    )


def _is_packed(tensor: Tensor) -> bool:
    """Return whether a tensor's elements fill its memory, with the first axis outside the others."""
    format_ = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim(), torch.contiguous_format)
    return bool(tensor.is_contiguous() or tensor.is_contiguous(memory_format=format_))


def _states(tensors: Tensors) -> list[tuple[int, int]]:
    return [(tensor._version, tensor.data_ptr()) for tensor in tensors if tensor is not None]


def _make_fold(tensors: Tensors, eps: float) -> _Fold:
    weight, bias, factor, shift, mean, variance = tensors
    assert weight is not None
    assert mean is not None
    assert variance is not None
    present = [tensor for tensor in tensors if tensor is not None]
    sample = ValueSample([(t.data_ptr(), len(t), t.numel() // len(t), t.element_size()) for t in present])
    with torch.inference_mode(False), torch.no_grad():
        scale = (variance.double() + eps).rsqrt()
        if factor is not None:
            scale = scale * factor.double()
        moved = -mean.double() if bias is None else bias.double() - mean.double()
        offset = moved * scale if shift is None else moved * scale + shift.double()
        folded = (weight.double() * scale.view(-1, *(1,) * (weight.dim() - 1))).to(weight.dtype)
        offset = offset.to(weight.dtype)
        weights = None
        if folded.isfinite().all() and offset.isfinite().all():
            own = torch.empty_like(weight).copy_(folded)  # with the weight's strides
            weights = (nn.Parameter(own, requires_grad=False), nn.Parameter(offset, requires_grad=False))
    return _Fold(weights, tensors, _states(tensors), sample, eps)

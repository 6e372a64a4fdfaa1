"""The loss of a mini-batch, computed in micro-batches, also if it is a weighted mean."""

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from mucudnn.errors import MucudnnWarning, UsageError
from mucudnn.torch.parallel.pipeline.arguments import Arguments

Loss: TypeAlias = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor | float]]
"""A function of outputs and targets that returns a mean over samples, or a sum and its weight."""

_WEIGHTED_FUNCTIONS = nn.functional.cross_entropy, nn.functional.nll_loss
_WEIGHTED_MODULES = nn.CrossEntropyLoss, nn.NLLLoss


class _ClassMean(NamedTuple):
    """A mean weighted by the targets' classes, in which ignored targets have the weight 0."""

    elements: Callable[[Any, Any], Tensor]
    weight: Tensor | None
    ignored: int


class MiniBatchLoss:
    """The loss of a mini-batch on a rank, added up over its micro-batches.

    PyTorch's cross entropy and negative log likelihood are a mean over the targets that are not ignored,
    weighted by their classes. Every rank knows all targets, so each micro-batch's sum is divided by the
    weight of the mini-batch. A loss that returns its weight has a known weight only after the last
    micro-batch, so its gradients are those of the sum over a provisional unit, and `factor` corrects them.

    Args:
        loss: the loss function.
        targets: the targets of the whole mini-batch.
        scale: a factor of the gradients, which does not change the value.
    """

    def __init__(self, loss: Loss, targets: Arguments, scale: float | Tensor = 1.0) -> None:
        self._loss, self._scale = loss, scale
        self._is_sum = _is_sum(loss)
        first, *others = targets.tensors
        self._unit = max(first.numel(), 1)
        is_alone = not others and targets.names is None
        is_classes = is_alone and not first.is_floating_point()  # not probabilities of classes
        self._mean = _class_mean(loss) if is_classes else None
        self._targets = targets
        self._weight: Tensor | None = None
        self._value = self._weights = 0.0
        self._parts = self._pairs = self._class_means = self._not_a_number = 0

    def part(self, returned: Any, targets: Arguments) -> Tensor:
        """Return the scalar from which a micro-batch's backward pass starts, and count its loss.

        Args:
            returned: what the last stage returned; the loss gets a dict as it is.
            targets: the targets of the micro-batch.

        Raises:
            UsageError: the stage returned no tensors, or the loss neither a tensor nor a sum and a weight.
        """
        self._parts += 1
        return self._part(returned, targets) * self._scale

    def _part(self, returned: Any, targets: Arguments) -> Tensor:
        if isinstance(returned, Mapping):  # a class of its own may have other entries, or attributes
            value, outputs = returned, [v for v in returned.values() if isinstance(v, Tensor)]
        else:
            checked = Arguments.of(returned, "the output of the last stage")
            value, outputs = checked.value, list(checked.tensors)
        arguments = value, targets.value
        if self._mean is not None:
            elements = self._mean.elements(*arguments)
            total = elements.sum(dtype=torch.promote_types(elements.dtype, torch.float32))
            if self._weight is None:
                self._weight = _weigh(self._targets.tensors[0], self._mean.weight, self._mean.ignored)
            return self._count(total / self._weight)
        result = self._loss(*arguments)
        if isinstance(result, Tensor):
            pair = None if self._is_sum else _find_weight(result, outputs)
            self._class_means += pair is not None
            if pair is None:
                is_sum = self._is_sum or _is_sum_inside(result, outputs)
                share = targets.samples / self._targets.samples
                return self._count(result if is_sum else result * share)
        else:
            pair = _check_pair(result)
        total, weight = pair
        self._pairs += 1
        self._weights += weight
        self._count(total)
        return total / self._unit

    def _count(self, value: Tensor) -> Tensor:
        number = float(value.detach())
        self._value += number
        self._not_a_number += number != number
        return value

    @property
    def figures(self) -> tuple[float, ...]:
        """The figures of this rank; `whole` and `factor` take their sums over the ranks of a pipeline."""
        return self._value, self._weights, self._parts, self._pairs, self._class_means, self._not_a_number

    def whole(self, sums: Tensor) -> Tensor:
        """Return the loss of the mini-batches of all pipelines: the mean of the pipelines' losses.

        Args:
            sums: the figures' sums in each pipeline, (pipelines, figures).

        Raises:
            UsageError: the loss returned a weight for some micro-batches only.
        """
        value, weights, parts, pairs, _, not_a_number = sums.unbind(-1)
        has_weight = pairs > 0
        for pair_count, count in zip(pairs.int().tolist(), parts.int().tolist(), strict=True):
            if 0 < pair_count < count:
                raise UsageError(
                    f"the loss returned a weight for {pair_count} of the {count} micro-batches of a "
                    "pipeline: return (sum, weight) for all of them, or a mean for all"
                )
        is_part = (not_a_number > 0) & (not_a_number < parts) & ~has_weight
        if bool(is_part.any()):
            warnings.warn(
                "the loss of a micro-batch is not a number, while that of another is. If the loss is a mean "
                "without the targets that it ignores, let it return (sum, weight)",
                MucudnnWarning,
                stacklevel=3,
            )
        return torch.where(has_weight, value / weights, value).mean()

    def factor(self, sums: Tensor) -> float:
        """Return the factor by which to multiply a pipeline's gradients, from the sums of its figures."""
        _, weights, _, pairs, class_means, _ = sums.tolist()
        if pairs == 0 or (weights == 0 and class_means):  # PyTorch's mean of nothing has no gradients
            return 1.0
        return self._unit / weights if weights else float("nan")


def check_parameters(loss: Loss) -> None:
    """Warn if a loss has parameters that would be trained."""
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        warnings.warn(
            "the loss has parameters with gradients, which the pipeline neither adds up nor yields: put them "
            "into the last stage",
            MucudnnWarning,
            stacklevel=3,
        )


def _class_mean(loss: Loss) -> _ClassMean | None:
    """Return the mean that a loss computes over classes, or None if the loss is not one of PyTorch's."""
    loss = getattr(loss, "_orig_mod", loss)  # a compiled module
    if isinstance(loss, _WEIGHTED_MODULES):
        if loss.reduction != "mean" or type(loss).forward not in {m.forward for m in _WEIGHTED_MODULES}:
            return None
        elements = copy.copy(loss)
        elements.reduction = "none"
        return _ClassMean(elements, loss.weight, loss.ignore_index)
    call = loss if isinstance(loss, partial) else partial(loss)
    options: dict[str, Any] = {"weight": None, "ignore_index": -100, "reduction": "mean", **call.keywords}
    is_mean = options["reduction"] == "mean" and not {"size_average", "reduce"} & options.keys()
    if call.func not in _WEIGHTED_FUNCTIONS or call.args or not is_mean:
        return None
    elements = partial(call.func, **{**call.keywords, "reduction": "none"})
    return _ClassMean(elements, options["weight"], options["ignore_index"])


def _is_sum(loss: Loss) -> bool:
    """Return whether a loss is one of PyTorch's with reduction="sum", which adds up over micro-batches."""
    loss = getattr(loss, "_orig_mod", loss)
    if isinstance(loss, partial):
        return loss.keywords.get("reduction") == "sum" and loss.func.__module__ == nn.functional.__name__
    module = getattr(getattr(type(loss), "forward", None), "__module__", None)
    return getattr(loss, "reduction", None) == "sum" and module == nn.modules.loss.__name__


def _weigh(targets: Tensor, weight: Tensor | None, ignored: int) -> Tensor:
    classes = targets.long()
    counts = classes != ignored
    if weight is None:
        return counts.sum()
    weights = torch.where(counts, weight.detach()[classes.where(counts, 0)], 0)
    return weights.sum(dtype=torch.promote_types(weight.dtype, torch.float32))


def _check_pair(result: Any) -> tuple[Tensor, float]:
    """Return the sum and the weight that a loss returned. Raises UsageError."""
    if not (isinstance(result, tuple | list) and len(result) == 2):
        raise UsageError(
            f"the loss returned a {type(result).__name__}: return a scalar tensor, or (sum, weight)"
        )
    total, weight = result
    for name, value in (("sum", total), ("weight", weight)):
        if isinstance(value, Tensor) and value.numel() != 1:
            raise UsageError(f"the loss returned a {name} of shape {tuple(value.shape)}: give one number")
    if not isinstance(total, Tensor):
        raise UsageError(f"the loss returned a {type(total).__name__} as the sum: give a tensor")
    if isinstance(weight, Tensor) and weight.requires_grad:
        raise UsageError("the loss returned a weight that depends on parameters: its gradient would be lost")
    return total.reshape(()), float(weight)


def _find_weight(value: Tensor, outputs: Sequence[Tensor]) -> tuple[Tensor, float] | None:
    """Return the sum and the weight of a loss that is PyTorch's mean over classes inside another function.

    Warn if the mean over classes is only a part of the loss, because its weight in the loss is not known.
    """
    for node in nodes_of(value, outputs):
        if not node.name().startswith("NllLoss"):
            continue
        ignored = node._saved_ignore_index
        ignored -= (ignored >> 63) << 64  # autograd shows a signed integer as an unsigned one of 64 bits
        weight = float(_weigh(node._saved_target, node._saved_weight, ignored))
        if node is value.grad_fn and node._saved_reduction == 1:  # the mean
            if weight == 0:  # no target counts, so the mean is NaN, but the sum is 0
                nothing = [output.flatten()[:0].sum() for output in outputs if output.requires_grad]
                return sum(nothing, torch.zeros(())), weight
            return value.to(torch.promote_types(value.dtype, torch.float32)) * weight, weight
        if node is not value.grad_fn and weight != node._saved_target.numel():
            warnings.warn(
                "a part of the loss weights or ignores targets, and the pipeline does not see how. If it is "
                "a mean over the targets that count, the mean over micro-batches differs from it: let the "
                "loss return (sum, weight)",
                MucudnnWarning,
                stacklevel=6,
            )
    return None


def _is_sum_inside(value: Tensor, outputs: Sequence[Tensor]) -> bool:
    """Return whether a loss is the sum of one of PyTorch's losses inside another function."""
    nodes = set(nodes_of(value, outputs))
    return value.grad_fn in nodes and getattr(value.grad_fn, "_saved_reduction", None) == 2


def nodes_of(value: Tensor, outputs: Sequence[Tensor] = ()) -> Iterator[Any]:
    """Yield the nodes of the autograd graph between a loss and the outputs from which it is computed."""
    seen: set[Any] = {None, *(output.grad_fn for output in outputs)}
    nodes: list[Any] = [value.grad_fn]
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            yield node
            nodes.extend(follower for follower, _ in node.next_functions)

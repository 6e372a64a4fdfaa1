"""The loss of a mini-batch, computed in micro-batches, also if it is a weighted mean."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mucudnn.errors import MucudnnWarning, UsageError
from mucudnn.torch.parallel.pipeline.arguments import Arguments

Loss: TypeAlias = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor | float]]
"""A function of outputs and targets that returns a mean over samples, or a sum and its weight."""


class MiniBatchLoss:
    """The loss of a mini-batch on a rank, added up over its micro-batches.

    The weight of a mini-batch is known only after its last micro-batch, so the gradients of a loss with
    weights are those of the sum over a provisional unit, and `factor` corrects them.

    Args:
        loss: the loss function.
        targets: the targets of the whole mini-batch.
        scale: a factor of the gradients, which does not change the value.
    """

    def __init__(self, loss: Loss, targets: Arguments, scale: float | Tensor = 1.0) -> None:
        self._loss, self._scale = loss, scale
        self._samples = targets.samples
        self._unit = max(targets.tensors[0].numel(), 1)
        self._value = self._weights = 0.0
        self._parts = self._pairs = 0

    def part(self, returned: Any, targets: Arguments) -> Tensor:
        """Return the scalar from which a micro-batch's backward pass starts, and count its loss.

        Args:
            returned: what the last stage returned; the loss gets a dict as it is.
            targets: the targets of the micro-batch.

        Raises:
            UsageError: the stage returned no tensors, or the loss neither a tensor nor a sum and a weight.
        """
        if not isinstance(returned, Mapping):  # a class of its own may have other entries, or attributes
            returned = Arguments.of(returned, "the output of the last stage").value
        with _Reductions() as reductions:
            result: Any = self._loss(returned, targets.value)
        pair = reductions.sum_and_weight_of(result) if isinstance(result, Tensor) else _check_pair(result)
        if pair is not None:
            value, weight = pair
            self._weights += weight
            self._pairs += 1
            start = value / self._unit
        elif any(result is total for total in reductions.sums):
            start = value = result
        else:
            start = value = result * (targets.samples / self._samples)
        self._value += float(value.detach())
        self._parts += 1
        return start * self._scale

    @property
    def figures(self) -> tuple[float, ...]:
        """The figures of this rank; `whole` and `factor` take their sums over the ranks of a pipeline."""
        return self._value, self._weights, self._parts, self._pairs

    def whole(self, sums: Tensor) -> Tensor:
        """Return the loss of the mini-batches of all pipelines: the mean of the pipelines' losses.

        Args:
            sums: the figures' sums in each pipeline, (pipelines, figures).

        Raises:
            UsageError: the loss returned a weight for some micro-batches only.
        """
        value, weights, parts, pairs = sums.unbind(-1)
        has_weight = pairs > 0
        for pair_count, count in zip(pairs.int().tolist(), parts.int().tolist(), strict=True):
            if 0 < pair_count < count:
                raise UsageError(
                    f"the loss returned a weight for {pair_count} of the {count} micro-batches of a "
                    "pipeline: return (sum, weight) for all of them, or a mean for all"
                )
        return torch.where(has_weight, value / weights, value).mean()

    def factor(self, sums: Tensor) -> float:
        """Return the factor by which to multiply a pipeline's gradients, from the sums of its figures.

        If nothing has a weight, the loss is not a number, and the gradients are those of the sum, which are 0
        with PyTorch's losses.
        """
        _, weights, _, _ = sums.tolist()
        return self._unit / weights if weights else 1.0


def check_parameters(loss: Loss) -> None:
    """Warn if a loss has parameters that would be trained."""
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        warnings.warn(
            "the loss has parameters with gradients, which the pipeline neither adds up nor yields: put them "
            "into the last stage",
            MucudnnWarning,
            stacklevel=3,
        )


_CLASS_LOSSES = nn.functional.cross_entropy, nn.functional.nll_loss


class _Reductions(TorchFunctionMode):
    """The reductions of PyTorch's losses that a loss function calls.

    Cross entropy and negative log likelihood are a mean over the targets that are not ignored, weighted by
    their classes, so they are computed as a sum and a weight.

    Attributes:
        means: the means with their sums, weights and numbers of targets.
        sums: the results with reduction="sum".
    """

    def __init__(self) -> None:
        super().__init__()
        self.means: list[tuple[Tensor, Tensor, Tensor, int]] = []
        self.sums: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function. A mean over classes is computed from its sum and weight, which are noted."""
        options = kwargs or {}
        mean = self._class_mean(func, *args, **options) if func in _CLASS_LOSSES else None
        if mean is not None:
            return mean
        result = func(*args, **options)
        if options.get("reduction") == "sum":
            self.sums.append(result)
        return result

    def _class_mean(
        self,
        func: Callable[..., Tensor],
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        **options: float,
    ) -> Tensor | None:
        """Return the mean of a cross entropy over its targets, and note its sum and weight.

        Return None for another reduction, and for targets that are probabilities.
        """
        is_mean = reduction == "mean" and size_average is None and reduce is None
        if not is_mean or target.is_floating_point():  # probabilities of classes
            return None
        elements = func(input, target, weight, ignore_index=ignore_index, reduction="none", **options)
        total = elements.sum(dtype=torch.promote_types(elements.dtype, torch.float32))
        divisor = _weigh(target, weight, ignore_index)
        mean = (total / divisor).to(elements.dtype)
        self.means.append((mean, total, divisor, target.numel()))
        return mean

    def sum_and_weight_of(self, value: Tensor) -> tuple[Tensor, float] | None:
        """Return the sum and the weight if the value of the loss is a mean over classes.

        Warn if such a mean is only a part of the value, because its weight in the value is not known.
        """
        for mean, total, weight, targets in self.means:
            if value is mean:
                return total, float(weight)
            if mean.requires_grad and weight != targets:
                warnings.warn(
                    "a part of the loss weights or ignores targets, and the pipeline does not see how. If it "
                    "is a mean over the targets that count, the mean over micro-batches differs from it: let "
                    "the loss return (sum, weight)",
                    MucudnnWarning,
                    stacklevel=6,
                )
        return None


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

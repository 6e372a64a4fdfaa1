"""The loss of a mini-batch, computed in micro-batches, also if it is a weighted mean."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mucudnn.errors import MucudnnWarning, UsageError
from mucudnn.torch.parallel.pipeline.arguments import Arguments

Loss: TypeAlias = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor | float]]
"""A function of outputs and targets that returns the mean over the samples, or a sum and its weight."""


class MiniBatchLoss:
    """The loss of a mini-batch on a rank, added up over its micro-batches.

    A mean over n samples counts as n times the mean, with the weight n. The weight of a mini-batch is known
    only after its last micro-batch, so gradients are first those of the sum over the number of samples, and
    `factor` corrects them.

    Args:
        loss: the loss function.
        samples: the samples of the mini-batch.
        scale: a factor of the gradients, which does not change the value.

    Attributes:
        figures: the sum and the weight of the micro-batches on this rank.
    """

    def __init__(self, loss: Loss, samples: int, scale: float | Tensor = 1.0) -> None:
        self._loss, self._samples, self._scale = loss, samples, scale
        self.figures = 0.0, 0.0

    def part(self, returned: Any, targets: Arguments) -> Tensor:
        """Return the scalar from which a micro-batch's backward pass starts, and count its loss.

        Args:
            returned: what the last stage returned; the loss gets a dict as it is.
            targets: the targets of the micro-batch.

        Raises:
            UsageError: the stage returned no tensors, or the loss neither a mean over the samples nor a sum
                and a weight.
        """
        if not isinstance(returned, Mapping):  # a class of its own may have other entries, or attributes
            returned = Arguments.of(returned, "the output of the last stage").value
        with _Reductions() as reductions:
            result: Any = self._loss(returned, targets.value)
        if isinstance(result, Tensor):
            if reductions.weighs or result is reductions.total:
                reason = "weights or ignores targets" if reductions.weighs else "is a sum"
                raise UsageError(
                    f"the loss {reason}: let it return (sum, weight), or the mean over the samples"
                )
            result = result * targets.samples, targets.samples
        total, weight = _check_pair(result)
        self.figures = self.figures[0] + float(total.detach()), self.figures[1] + weight
        return total / self._samples * self._scale

    def factor(self, weight: float) -> float:
        """Return the factor by which to multiply a pipeline's gradients, from the weight of its mini-batch.

        If nothing has a weight, the loss is not a number, and the gradients are those of the sum, which are 0
        with PyTorch's losses.
        """
        return self._samples / weight if weight else 1.0


def check_parameters(loss: Loss) -> None:
    """Warn if a loss has parameters that would be trained."""
    if isinstance(loss, nn.Module) and any(p.requires_grad for p in loss.parameters()):
        warnings.warn(
            "the loss has parameters with gradients, which the pipeline neither adds up nor yields: put them "
            "into the last stage",
            MucudnnWarning,
            stacklevel=3,
        )


class _Reductions(TorchFunctionMode):
    """The calls of PyTorch's losses in a loss, which may show that it returns no mean over samples.

    Attributes:
        weighs: whether a cross entropy weights or ignores targets.
        total: the last result with reduction="sum".
    """

    weighs, total = False, None

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function, and note how it reduces."""
        options = kwargs or {}
        if func in (nn.functional.cross_entropy, nn.functional.nll_loss):
            self.weighs = self.weighs or _weighs(*args, **options)
        result = func(*args, **options)
        if options.get("reduction") == "sum":
            self.total = result
        return result


def _weighs(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    **options: float,
) -> bool:
    """Return whether a cross entropy is a mean in which not all targets count alike."""
    if reduction != "mean" or target.is_floating_point():  # probabilities of classes are never ignored
        return False
    return weight is not None or bool((target == ignore_index).any())


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

"""Losses of divided tensors."""

from typing import Any

from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import redistribute, total
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import add_up
from mucudnn.torch.parallel.spatial.functions.elementwise import run_on_elements
from mucudnn.torch.parallel.spatial.refusing import refuse

_BINARY = {F.binary_cross_entropy_with_logits, F.binary_cross_entropy}


@handles(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.kl_div, *_BINARY)
def _pointwise(function: Any, *args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
    options = {name: value for name, value in kwargs.items() if value is not None}
    if (
        len(args) != 2
        or {"size_average", "reduce"} & options.keys()
        or ("weight" in options and function not in _BINARY)  # their mean does not count weights
    ):
        raise refuse(function, "with these arguments is not in the table")
    losses = run_on_elements(function, *args, **options, reduction="none")
    return _reduced(losses, reduction, losses.shape[0] if reduction == "batchmean" else losses.numel())


@handles(F.cross_entropy, F.nll_loss)
def _of_classes(
    function: Any, input: Any, target: Any, weight: Any = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", **kwargs: Any,
) -> Any:  # fmt: skip
    """Return a loss of logits or log-probabilities; the target has classes or, of axis 1, probabilities."""
    if size_average is not None or reduce is not None or isinstance(weight, Divided):
        raise refuse(function, "with these arguments is not in the table")
    if not isinstance(input, Divided) or input.dim() < 2 or 1 in input.divided_axes:
        raise refuse(function, "without whole classes is not in the table")
    without_classes = input.division.on_axes([max(axis - 1, 0) for axis in input.divided_axes])
    shape = [input.shape[0], *input.shape[2:]]
    has_classes = not target.is_floating_point()
    division, expected = (without_classes, shape) if has_classes else (input.division, [*input.shape])
    if list(target.shape) != expected:
        raise UsageError(f"the target is {tuple(target.shape)}, and has to be {tuple(expected)}")
    places = redistribute(target, division).local
    options = {"weight": weight, "ignore_index": ignore_index, "reduction": "none", **kwargs}
    losses = Divided(function(input.local, places, **options), shape, without_classes)
    if not has_classes:
        return _reduced(losses, reduction, losses.numel())
    counted = places != ignore_index
    if weight is not None:
        counted = counted * weight[places.where(counted, 0)]
    return _reduced(losses, reduction, add_up(counted.sum(), division.groups))


def _reduced(losses: Divided, reduction: str, count: Any) -> Any:
    if reduction == "none":
        return losses
    return total(losses) if reduction == "sum" else total(losses) / count

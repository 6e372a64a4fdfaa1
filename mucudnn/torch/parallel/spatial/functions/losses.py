"""Losses of divided tensors."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import redivide, total
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import add_up
from mucudnn.torch.parallel.spatial.functions.elementwise import run_on_elements
from mucudnn.torch.parallel.spatial.refusing import refuse


@handles(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits)
def _pointwise(function: Any, *args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
    options = {name: value for name, value in kwargs.items() if value is not None}
    if len(args) != 2 or {"size_average", "reduce", "weight", "pos_weight"} & options.keys():
        raise refuse(function, "with these arguments is not in the table")
    losses = run_on_elements(function, *args, **options, reduction="none")
    return _reduced(losses, reduction, losses.numel())


@handles(F.cross_entropy)
def _cross_entropy(
    function: Any, input: Divided, target: Any, weight: Any = None, size_average: Any = None,
    ignore_index: int = -100, reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    if weight is not None or not isinstance(input, Divided) or 1 in input.divided_axes:
        raise refuse(function, "with weights of classes is not in the table")
    division = input.division.on_axes([max(axis - 1, 0) for axis in input.divided_axes])
    shape = [input.shape[0], *input.shape[2:]]
    if isinstance(target, Tensor):
        target = redivide(target, division)
    if target.division != division or list(target.shape) != shape:
        raise UsageError(f"the target is {target}, and has to be {tuple(shape)} with the same division")
    losses = F.cross_entropy(
        input.local, target.local, ignore_index=ignore_index, reduction="none",
        label_smoothing=label_smoothing,
    )  # fmt: skip
    count = add_up((target.local != ignore_index).sum(), division.groups)
    return _reduced(Divided(losses, shape, division), reduction, count)


def _reduced(losses: Divided, reduction: str, count: Any) -> Any:
    if reduction == "none":
        return losses
    return total(losses) / count if reduction == "mean" else total(losses)

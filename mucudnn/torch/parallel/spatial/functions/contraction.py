"""Matrix products and `einsum` of divided tensors.

A product is described by labels, as in `einsum`. One operand, the first that leaves the result divided, keeps
its division: the others are divided along the same label, or gathered where they lack it. If the product sums
over that label, each rank sums over its part, and the ranks add up their results.
"""

import string
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import operand
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import add_up
from mucudnn.torch.parallel.spatial.gathering import note
from mucudnn.torch.parallel.spatial.refusing import refuse


def contract(
    function: Any, operands: Sequence[Any], labels: Sequence[str], output: str, run: Callable[..., Tensor]
) -> Any:
    """Return the product of operands, each with a label for each axis. `run` computes it from the parts.

    `output` are the labels of the result. An axis of length one stands for any length. The result is a
    divided tensor, or a whole one if its labels are not divided. Raises NotInTableError for an operand that
    has a label twice, and UsageError for lengths that do not match.
    """
    sizes: dict[str, int] = {}
    for x, names in zip(operands, labels, strict=True):
        if len(set(names)) != len(names) or len(names) != x.dim():
            raise refuse(function, "with these axes is not in the table")
        for label, n in zip(names, x.shape, strict=True):
            if n != 1 and sizes.setdefault(label, n) not in (1, n):
                raise UsageError(f"tensors of {', '.join(str(tuple(x.shape)) for x in operands)} do not fit")
            sizes[label] = max(n, sizes.get(label, n))
    guide, names = _most_divided(operands, labels, sizes, function, output)
    divided = [(names[axis], owners) for axis, owners in guide.division.axes]
    parts = []
    for x, own in zip(operands, labels, strict=True):
        met = ((owners.name, own.index(label)) for label, owners in divided if label in own)
        axes = {name: axis for name, axis in met if x.shape[axis] == sizes[own[axis]]}
        parts.append(operand(x, axes, guide.division))
    local = run(*parts)
    local = add_up(local, [owners.group for label, owners in divided if label not in output])
    kept = {owners.name: output.index(label) for label, owners in divided if label in output}
    if len(kept) < len(divided) and local.numel() * guide.division.ranks > guide.numel():
        note(function, [local], "it sums over a divided axis, and its result is larger than a part")
    if not kept:
        return local
    return Divided(local, [sizes[label] for label in output], guide.division.along(kept))


def _most_divided(
    operands: Sequence[Any], labels: Sequence[str], sizes: dict[str, int], function: Any, output: str
) -> tuple[Divided, str]:
    """Return the operand with the most divided labels in the result, then in all, with its labels.

    Of equals the first counts: the queries of an attention, so that the product with the values is divided.
    """
    fitting = [
        (x, names)
        for x, names in zip(operands, labels, strict=True)
        if isinstance(x, Divided) and all(x.shape[axis] == sizes[names[axis]] for axis in x.divided_axes)
    ]
    if not fitting:
        raise refuse(function, "whose divided axis has length one is not in the table")

    def kept_and_all(operand: tuple[Divided, str]) -> tuple[int, int]:
        divided = [operand[1][axis] for axis in operand[0].divided_axes]
        return sum(label in output for label in divided), len(divided)

    return max(fitting, key=kept_and_all)


@handles("matmul", "__matmul__", "bmm")
def _matmul(function: Any, a: Any, b: Any) -> Any:
    if min(a.dim(), b.dim()) < 2:
        raise refuse(function, "with a vector is not in the table")
    batch = string.ascii_letters[3 : 1 + max(a.dim(), b.dim())]
    labels = [batch[len(batch) - x.dim() + 2 :] + names for x, names in ((a, "ab"), (b, "bc"))]
    return contract(function, (a, b), labels, batch + "ac", torch.matmul)


@handles(Tensor.__rmatmul__)
def _matmul_from_right(function: Any, b: Any, a: Any) -> Any:
    return _matmul(torch.matmul, a, b)


@handles("baddbmm")
def _add_to_products(function: Any, input: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _matmul(function, a, b)
    product = product * alpha if alpha != 1 else product
    return product + (input * beta if beta != 1 else input) if beta else product


@handles(torch.einsum)
def _einsum(function: Any, equation: str, *operands: Any) -> Any:
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = tuple(operands[0])
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    labels = inputs.split(",")
    if not arrow or "." in equation or len(labels) != len(operands):
        raise refuse(function, f"of {equation!r} is not in the table")
    return contract(function, operands, labels, output, lambda *parts: torch.einsum(equation, *parts))

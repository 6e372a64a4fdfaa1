"""Formulas that let PyTorch's FlopCounterMode count the three passes as it counts its own convolutions."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mucudnn.arrays.call import by_role
from mucudnn.problems.kernels import PASSES
from mucudnn.torch.operators import ops  # noqa: F401 (defines the operators)
from mucudnn.torch.operators.options import Ints, Options
from mucudnn.torch.operators.passes import stock_arguments


@contextmanager
def _silent(name: str) -> Iterator[None]:
    log = logging.getLogger(name)
    before, log.disabled = log.disabled, True
    yield
    log.disabled = before


with _silent("torch.utils.flop_counter"):  # its import logs a warning if Triton is missing
    from torch.utils.flop_counter import flop_registry, register_flop_formula

_aten = torch.ops.aten


def _formula_of(pass_: str) -> Callable[..., int]:
    def count(first: Ints, second: Ints, third: Ints | None, *options: Any, out_shape: Ints, **_: Any) -> int:
        stock, function = stock_arguments(Options(*options)), _aten.convolution
        arguments: tuple[Any, ...] = first, second, third, *stock
        result: Any = out_shape
        if pass_ != "forward":
            x, w, dy = by_role(pass_, first, second, third)
            mask = [pass_ == "backward_data", pass_ == "backward_filter", False]
            function, result = _aten.convolution_backward, (x, w, None)
            arguments = dy, x, w, None, *stock, mask
        flops: int = flop_registry[function](*arguments, out_val=result)
        return flops

    return count


for _pass in PASSES:
    register_flop_formula(getattr(torch.ops.mucudnn, f"convolution_{_pass}"))(_formula_of(_pass))

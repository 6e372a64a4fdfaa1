"""Formulas that let PyTorch's FlopCounterMode count the three passes as it counts its own convolutions."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

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

_aten, _ours = torch.ops.aten, torch.ops.mucudnn


@register_flop_formula(_ours.convolution_forward)
def _forward(x: Ints, w: Ints, bias: Ints | None, *options: Any, out_shape: Ints, **_: Any) -> int:
    stock = stock_arguments(Options(*options))
    flops: int = flop_registry[_aten.convolution](x, w, bias, *stock, out_val=out_shape)
    return flops


@register_flop_formula(_ours.convolution_backward_data)
def _backward_data(dy: Ints, w: Ints, input_shape: Ints, *options: Any, **_: Any) -> int:
    return _backward(dy, input_shape, w, options, [True, False, False])


@register_flop_formula(_ours.convolution_backward_filter)
def _backward_filter(x: Ints, dy: Ints, filter_shape: Ints, *options: Any, **_: Any) -> int:
    return _backward(dy, x, filter_shape, options, [False, True, False])


def _backward(dy: Ints, x: Ints, w: Ints, options: tuple[Any, ...], mask: list[bool]) -> int:
    stock, gradients = stock_arguments(Options(*options)), (x, w, None)
    flops: int = flop_registry[_aten.convolution_backward](dy, x, w, None, *stock, mask, out_val=gradients)
    return flops

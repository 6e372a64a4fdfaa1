"""Formulas that let PyTorch's FlopCounterMode count the three passes as it counts its own convolutions."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import torch

from mucudnn.arrays.call import by_role
from mucudnn.problems.kernels import PASSES
from mucudnn.torch.operators import ops  # noqa: F401 (defines the operators)
from mucudnn.torch.operators.options import Ints


@contextmanager
def _silent(name: str) -> Iterator[None]:
    log = logging.getLogger(name)
    before, log.disabled = log.disabled, True
    yield
    log.disabled = before


with _silent("torch.utils.flop_counter"):  # its import logs a warning if Triton is missing
    from torch.utils.flop_counter import register_flop_formula


def _formula_of(pass_: str) -> Callable[..., int]:
    def count(first: Ints, second: Ints, *_: Any, out_shape: Ints, **__: Any) -> int:
        x, w, y = by_role(pass_, first, second, out_shape)
        # Like PyTorch, multiply each filter gradient with all input channels, also those of other groups.
        channels = x[1] if pass_ == "backward_filter" else w[1]
        return 2 * prod(y) * prod(w[2:]) * channels

    return count


for _pass in PASSES:
    register_flop_formula(getattr(torch.ops.mucudnn, f"convolution_{_pass}"))(_formula_of(_pass))

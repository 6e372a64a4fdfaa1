"""The convolutions of a network in unmodified PyTorch on a CUDA device, for `recognised`.

usage: python bench/suites/drop_in/recognised_torch.py NETWORK
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress

import torch
from torch import Tensor
from torch.nn import functional

from bench.suites.drop_in.recognised import options_of, read_convolutions, shapes_of
from mucudnn.problems.kernels import Kernel

CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {2: functional.conv2d, 3: functional.conv3d}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
FORMS = [(dtype, last) for dtype in (torch.float32, torch.float16) for last in (False, True)]


def main(network: str) -> None:
    """Run the three passes of each convolution in four forms, and PyTorch's fused convolutions in one."""
    for kernel in read_convolutions(network):
        for dtype, last in FORMS:
            x, w = (tensor.to(dtype) for tensor in _operands(kernel))
            axes = x.dim() - 2
            if last:
                x, w = (tensor.to(memory_format=CHANNELS_LAST[axes]) for tensor in (x, w))
            with _without_own_kernels(kernel):
                y = CONVOLUTIONS[axes](x.requires_grad_(), w.requires_grad_(), **options_of(kernel))
                y.backward(torch.ones_like(y))
        _run_fused(kernel)


def _without_own_kernels(kernel: Kernel) -> AbstractContextManager[None]:
    """Ignore that a kernel of PyTorch's cannot run: it has some for depthwise convolutions, beside cuDNN."""
    is_depthwise = kernel.problem.groups == kernel.problem.in_channels > 1
    return suppress(RuntimeError) if is_depthwise else nullcontext()


def _operands(kernel: Kernel) -> list[Tensor]:
    return [torch.randn(shape).cuda() for shape in shapes_of(kernel)]


def _run_fused(kernel: Kernel) -> None:
    x, w = _operands(kernel)
    options = tuple(options_of(kernel).values())
    bias = torch.zeros(w.shape[0], device="cuda")
    y = torch.cudnn_convolution_relu(x, w, bias, *options)
    for alpha in (1, 0.5):
        torch.cudnn_convolution_add_relu(x, w, y, alpha, bias, *options)


if __name__ == "__main__":
    main(sys.argv[1])

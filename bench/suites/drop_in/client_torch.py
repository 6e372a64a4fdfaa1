"""Convolutions in unmodified PyTorch on a CUDA device, for `programs`."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor
from torch.nn import functional

from bench.suites.drop_in.client import Results, make_operands, run_problems
from mucudnn._native import Problem

CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def run(problem: Problem) -> Results:
    """Run the passes of a convolution; in fp32 and NCHW also the forward passes that PyTorch fuses."""
    x, w, y_gradient = (torch.from_numpy(array).cuda() for array in make_operands(problem))
    geometry = problem.stride, problem.padding, problem.dilation, problem.groups
    results: dict[str, Tensor | None] = {}
    if (problem.data_type, problem.layout) == ("f32", "nchw"):
        bias = w.flatten(1)[:, 0].contiguous()
        results["fused"] = torch.cudnn_convolution_relu(x, w, bias, *geometry)
        for alpha in (1, 0.5):
            results[f"fused, {alpha} of an addend"] = torch.cudnn_convolution_add_relu(
                x, w, y_gradient, alpha, bias, *geometry
            )
    if problem.layout == "nhwc":
        x, w = (tensor.to(memory_format=CHANNELS_LAST[problem.dims]) for tensor in (x, w))
    convolve = functional.conv2d if problem.dims == 2 else functional.conv3d
    # PyTorch has kernels of its own for depthwise convolutions, beside cuDNN, which may not run here.
    is_depthwise = problem.groups == problem.in_channels > 1
    with suppress(*[RuntimeError] * is_depthwise):
        y = convolve(x.requires_grad_(), w.requires_grad_(), None, *geometry)
        y.backward(y_gradient)
        results |= {"forward": y, "backward data": x.grad, "backward filter": w.grad}
    return {name: tensor.detach().cpu().numpy() for name, tensor in results.items() if tensor is not None}


if __name__ == "__main__":
    torch.backends.cudnn.allow_tf32 = False
    run_problems(run)

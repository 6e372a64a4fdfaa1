"""Large samples in unmodified PyTorch on a CUDA device, for `large_samples`.

usage: python bench/suites/drop_in/large_samples_torch.py RESULTS
"""

from __future__ import annotations

import torch
from torch.nn import functional

from bench.suites.drop_in.large_samples import Results, make_operands, run_layers
from mucudnn._native import Problem


def run(problem: Problem) -> Results:
    """Run the passes of a layer, and the forward pass with bias and RELU."""
    x, w, y_gradient = (torch.from_numpy(array).cuda() for array in make_operands(problem))
    convolve = functional.conv2d if len(problem.kernel) == 2 else functional.conv3d
    y = convolve(x.requires_grad_(), w.requires_grad_(), padding=problem.padding, stride=problem.stride)
    y.backward(y_gradient)
    ones = [1] * len(problem.kernel)
    with torch.no_grad():
        bias = w.flatten(1)[:, 0].contiguous()
        fused = torch.cudnn_convolution_relu(x, w, bias, problem.stride, problem.padding, ones, 1)
    results = {"forward": y, "backward data": x.grad, "backward filter": w.grad, "fused": fused}
    return {name: tensor.detach().cpu().numpy() for name, tensor in results.items() if tensor is not None}


if __name__ == "__main__":
    torch.backends.cudnn.allow_tf32 = False
    run_layers(run)

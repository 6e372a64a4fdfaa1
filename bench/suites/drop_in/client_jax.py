"""Convolutions in unmodified JAX on a CUDA device, for `programs`.

XLA_FLAGS keeps the layout that the program asks for, because XLA's own kernels, which would change it, do not
run.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src import hardware_utils

from bench.suites.drop_in.client import Results, make_operands, run_problems
from mucudnn._native import Problem

AXES = "DHW"
NAMES = ("forward", "backward data", "backward filter", "fused", "fused with an addend")


def run(problem: Problem) -> Results:
    """Return the results of a convolution's three passes, and of two forward passes that XLA fuses."""
    axes = AXES[-problem.dims :]
    layout = f"N{axes}C" if problem.layout == "nhwc" else f"NC{axes}"
    x, w, y_gradient = make_operands(problem)
    bias = w.reshape(len(w), -1)[:, 0].reshape(1, -1, *[1] * problem.dims)
    if problem.layout == "nhwc":
        x, y_gradient, bias = (np.moveaxis(array, 1, -1) for array in (x, y_gradient, bias))

    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, problem.stride, [(size, size) for size in problem.padding],
            rhs_dilation=problem.dilation, dimension_numbers=(layout, f"OI{axes}", layout),
            feature_group_count=problem.groups, precision=jax.lax.Precision.HIGHEST,
        )  # fmt: skip

    def ways(x: Any, w: Any, y_gradient: Any, bias: Any) -> Any:
        y, gradients = jax.vjp(convolve, x, w)
        relu = jax.nn.relu
        fused = relu(convolve(x, w) + bias), relu(convolve(x, w) + 0.5 * y_gradient + bias)
        return y, *gradients(y_gradient), *fused

    return dict(zip(NAMES, map(np.asarray, jax.jit(ways)(x, w, y_gradient, bias)), strict=True))


if __name__ == "__main__":
    hardware_utils.has_visible_nvidia_gpu = lambda: True  # JAX looks for the file of a device
    run_problems(run)

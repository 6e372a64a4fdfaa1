"""Large samples in unmodified JAX on a CUDA device, for `large_samples`.

XLA_FLAGS keeps the layout that the program asks for, because XLA's own kernels, which would change it, do not
run.

usage: python bench/suites/drop_in/large_samples_jax.py RESULTS
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax._src import hardware_utils

from bench.suites.drop_in.large_samples import Results, make_operands, run_layers
from mucudnn._native import Problem

AXES = "DHW"


def run(problem: Problem) -> Results:
    """Run the passes of a layer."""
    axes = AXES[-len(problem.kernel) :]
    layout = f"NC{axes}"

    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x,
            w,
            problem.stride,
            [(size, size) for size in problem.padding],
            dimension_numbers=(layout, f"OI{axes}", layout),
            precision=jax.lax.Precision.HIGHEST,
        )

    def passes(x: Any, w: Any, y_gradient: Any) -> Any:
        y, gradients = jax.vjp(convolve, x, w)
        return y, *gradients(y_gradient)

    results = jax.jit(passes)(*make_operands(problem))
    return dict(zip(("forward", "backward data", "backward filter"), map(np.asarray, results), strict=True))


if __name__ == "__main__":
    hardware_utils.has_visible_nvidia_gpu = lambda: True  # JAX looks for the file of a device
    run_layers(run)

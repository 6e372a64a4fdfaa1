"""The convolutions of a network in unmodified JAX on a CUDA device, for `recognised`.

usage: python bench/suites/drop_in/recognised_jax.py NETWORK
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax._src import hardware_utils

from bench.suites.drop_in.recognised import options_of, read_convolutions, shapes_of
from mucudnn.problems.kernels import Kernel

Array = Any
# The types, and whether channels are last. XLA chooses the layouts of cuDNN's calls itself.
FORMS = [(jnp.float32, False), (jnp.float16, True)]
AXES = "DHW"


def main(network: str) -> None:
    """Run the passes of each convolution, and two fused ones, in two forms.

    XLA compiles a whole network at once.
    """
    hardware_utils.has_visible_nvidia_gpu = lambda: True  # JAX looks for the file of a device
    kernels = read_convolutions(network)
    for dtype, last in FORMS:
        for function in (_passes, _fused):
            operands = [_operands(kernel, dtype, last) for kernel in kernels]
            convolutions = [partial(_convolve, kernel, last) for kernel in kernels]
            jax.block_until_ready(jax.jit(partial(_each, function, convolutions, last))(operands))


def _each(
    function: Callable[..., Any], convolutions: Sequence[Callable[..., Array]], last: bool, operands: Array
) -> Array:
    pairs = zip(convolutions, operands, strict=True)
    return [function(convolve, last, x, w) for convolve, (x, w) in pairs]


def _passes(convolve: Callable[..., Array], last: bool, x: Array, w: Array) -> Array:
    y, gradients = jax.vjp(convolve, x, w)
    return y, *gradients(jnp.ones_like(y))


def _fused(convolve: Callable[..., Array], last: bool, x: Array, w: Array) -> Array:
    y = jax.eval_shape(convolve, x, w)
    shape = [1] * len(y.shape)
    shape[-1 if last else 1] = w.shape[0]
    bias = jnp.full(shape, w[(0,) * w.ndim], y.dtype)
    residual = jnp.full(y.shape, x[(0,) * x.ndim], y.dtype)
    return [jax.nn.relu(convolve(x, w) + bias), jax.nn.relu(convolve(x, w) + 0.5 * residual + bias)]


def _convolve(kernel: Kernel, last: bool, x: Array, w: Array) -> Array:
    options = options_of(kernel)
    axes = AXES[-len(options["stride"]) :]
    layout = f"N{axes}C" if last else f"NC{axes}"
    return jax.lax.conv_general_dilated(
        x,
        w,
        options["stride"],
        [(size, size) for size in options["padding"]],
        rhs_dilation=options["dilation"],
        dimension_numbers=(layout, f"OI{axes}", layout),
        feature_group_count=options["groups"],
    )


def _operands(kernel: Kernel, dtype: Any, last: bool) -> tuple[Array, Array]:
    x, w = shapes_of(kernel)
    if last:
        x = [x[0], *x[2:], x[1]]
    return jnp.zeros(x, dtype), jnp.zeros(w, dtype)


if __name__ == "__main__":
    main(sys.argv[1])

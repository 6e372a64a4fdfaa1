"""A few convolutions by the array functions, without scratch memory and with a little of it."""

import statistics
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mucudnn.arrays.convolution import convolution_forward
from mucudnn.listener import Listener

LIMIT = "8MiB"  # the workspace that a convolution may use
_ROUNDS = 7  # each runs a convolution once within each limit
# A name, the shapes of the input and of the filter, and the padding.
_CONVOLUTIONS = (
    ("3×3, 64 channels", (16, 64, 56, 56), (64, 64, 3, 3), 1),
    ("5×5, 64 channels", (16, 64, 27, 27), (192, 64, 5, 5), 2),
    ("3×3×3, 16 channels", (2, 16, 32, 32, 32), (16, 16, 3, 3, 3), 1),
)


@dataclass(frozen=True)
class ConvolutionTimes:
    """The median times of a convolution in seconds, without workspace and within LIMIT.

    `difference` is the largest difference of the results, relative to the largest result.
    """

    name: str
    without: float
    within: float
    difference: float


def run_convolutions(listener: Listener) -> list[ConvolutionTimes]:
    """Run the convolutions within both limits, interleaved. The first calls measure what fits."""
    listener.message(f"Measuring {len(_CONVOLUTIONS)} convolutions without workspace and within {LIMIT} ...")
    return [
        _run_convolution(*convolution)
        for convolution in listener.track(_CONVOLUTIONS, "Running convolutions")
    ]


def _run_convolution(
    name: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...], padding: int
) -> ConvolutionTimes:
    generator = np.random.default_rng(1)
    x = generator.standard_normal(x_shape, dtype=np.float32)
    w = generator.standard_normal(w_shape, dtype=np.float32)
    results: dict[str, NDArray[np.float32]] = {}
    seconds: dict[str, list[float]] = {"0": [], LIMIT: []}
    for limit in seconds:
        results[limit] = convolution_forward(x, w, padding=padding, workspace=limit)
    for _ in range(_ROUNDS):
        for limit, times in seconds.items():
            begin = time.perf_counter()
            convolution_forward(x, w, padding=padding, workspace=limit)
            times.append(time.perf_counter() - begin)
    without, within = results.values()
    difference = float(np.abs(within - without).max() / np.abs(without).max())
    medians = [statistics.median(times) for times in seconds.values()]
    return ConvolutionTimes(name, medians[0], medians[1], difference)

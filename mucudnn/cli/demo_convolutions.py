"""A few convolutions by the array functions, without scratch memory and with a little of it."""

import statistics
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mucudnn._native import RunTime, estimate
from mucudnn.arrays.convolution import convolution_forward
from mucudnn.arrays.devices import device_named
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

    `difference` is the largest difference of the results, relative to the largest result. `is_busy` says that
    other programs disturbed the runs within a limit.
    """

    name: str
    without: float
    within: float
    difference: float
    is_busy: bool


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
    times: dict[str, list[RunTime]] = {"0": [], LIMIT: []}
    engine = device_named("cpu").engine
    for limit in times:
        results[limit] = convolution_forward(x, w, padding=padding, workspace=limit)
    for _ in range(_ROUNDS):
        for limit, own in times.items():
            run = partial(convolution_forward, x, w, padding=padding, workspace=limit)
            own.append(engine.time(run, engine.threads))
    without, within = results.values()
    difference = float(np.abs(within - without).max() / np.abs(without).max())
    medians = [statistics.median(run.wall_ms for run in own) / 1e3 for own in times.values()]
    is_busy = any(estimate(own, "").is_busy for own in times.values())
    return ConvolutionTimes(name, medians[0], medians[1], difference, is_busy)

"""Random arrays for the tensors of a problem."""

from typing import Any

import numpy as np
import numpy.typing as npt

from mucudnn._native import Problem

TYPES = {"f32": np.float32, "f64": np.float64, "f16": np.float16}


def tensors_of(problem: Problem) -> dict[str, np.ndarray]:
    """Return the three tensors with random values, channels first."""
    numbers = np.random.default_rng(1)
    shapes = {
        "x": (problem.mini_batch, problem.in_channels, *problem.input),
        "w": (problem.out_channels, problem.in_channels // problem.groups, *problem.kernel),
        "y": (problem.mini_batch, problem.out_channels, *problem.output),
    }
    return {name: numbers.random(shape).astype(TYPES[problem.data_type]) for name, shape in shapes.items()}


def in_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """Return an array whose channels are first in a layout."""
    return array if layout == "nchw" else np.ascontiguousarray(np.moveaxis(array, 1, -1))


def random_values(data_type: str, count: int, seed: int) -> npt.NDArray[Any]:
    """Return random values of a type. Those of bf16 are the upper halves of fp32's."""
    values = np.random.default_rng([seed, count]).uniform(-1, 1, count)
    if data_type == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(TYPES[data_type])

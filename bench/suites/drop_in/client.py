"""The frame of the clients of `programs`, which run problems by a framework and save the results.

usage: python bench/suites/drop_in/client_FRAMEWORK.py RESULTS PROBLEM...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from mucudnn._native import Problem, parse_descriptor

Array = npt.NDArray[Any]
Results = Mapping[str, Array]
TYPES = {"f32": np.float32, "f16": np.float16}


def make_operands(problem: Problem) -> tuple[Array, Array, Array]:
    """Return x, w and a gradient of y in NCHW, which are the same in each process."""
    generator = np.random.default_rng(1)
    shapes = (
        (problem.mini_batch, problem.in_channels, *problem.input),
        (problem.out_channels, problem.in_channels // problem.groups, *problem.kernel),
        (problem.mini_batch, problem.out_channels, *problem.output),
    )
    x, w, y = (
        generator.standard_normal(shape, np.float32).astype(TYPES[problem.data_type]) for shape in shapes
    )
    return x, w, y


def run_problems(run: Callable[[Problem], Results]) -> None:
    """Run the problems of the command line by a framework's function, and save the results."""
    path, *texts = sys.argv[1:]
    results = {
        f"{text} {name}": array for text in texts for name, array in run(parse_descriptor(text)[0]).items()
    }
    np.savez(path, **results)  # type: ignore[arg-type]  # none is named `allow_pickle`

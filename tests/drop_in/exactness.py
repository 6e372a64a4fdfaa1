"""The check that the error of a divided convolution is bounded by that of undivided ones.

With y the output, u the worst output of an algorithm run undivided, y64 the result in fp64 and all norms
Euclidean: |y - y64| <= 2 |u - y64| + 2 eps | |alpha| (|x| * |w|) + |beta| |y0| |.
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt
from graph_operations import loaded
from player import bytes_of
from reference import EPSILON, OUTPUT, convolve, epilogue_scale, operand_shapes, with_epilogue
from scripts import Fill, Work
from shim_client import shapes

from mucudnn._native import Candidate, Engine, Problem, host_library, parse_descriptor
from mucudnn.problems.kernels import Kernel

Array = npt.NDArray[np.float64]
Fills = dict[str, tuple[Fill, int]]


@cache
def _host() -> Engine:
    return Engine(host_library())


class Expected:
    """The result that a convolution must have, computed from the contents of its buffers."""

    def __init__(self, work: Work, fills: Fills) -> None:
        self.work, self.fills = work, fills
        self.problem: Problem = parse_descriptor(work.problem)[0]
        self.output = OUTPUT[work.pass_]

    def _values(self, name: str, shape: tuple[int, ...], *, absolute: bool) -> Array:
        fill, size = self.fills[self.work.buffers[name]]
        values = loaded(bytes_of(fill, size), shape, self.problem.data_type, self.problem.layout)
        return np.abs(values) if absolute else values

    def exact(self, *, absolute: bool = False) -> Array:
        """Return the result in fp64. With `absolute`, take absolute values: the scale of rounding errors."""
        work, sizes = self.work, shapes(self.problem)
        values = {}
        for name in "xwy":
            unread = name == self.output and not work.beta
            values[name] = (
                np.zeros(sizes[name]) if unread else self._values(name, sizes[name], absolute=absolute)
            )
        scale = abs if absolute else float
        result = scale(work.alpha) * convolve(self.problem, work.pass_, *(values[name] for name in "xwy"))
        if work.beta and not work.fused:
            result = result + scale(work.beta) * values[self.output]
        if work.fused:
            if work.beta:
                result = result + scale(work.beta) * self._values("z", sizes["y"], absolute=absolute)
            channels = (1, self.problem.out_channels, *(1 for _ in self.problem.output))
            result = result + self._values("bias", channels, absolute=absolute)
            return np.maximum(result, 0) if work.fused == "relu" and not absolute else result
        operands = {
            name: self._values(name, shape, absolute=absolute)
            for name, shape in operand_shapes(self.problem).items()
        }
        return (epilogue_scale if absolute else with_epilogue)(self.problem, result, operands)

    def undivided_error(self) -> float:
        """Return the largest error of an algorithm without epilogue. An epilogue does not enlarge errors."""
        problem = parse_descriptor(str(self.problem).partition("+")[0])[0]
        beta = 0.0 if self.work.fused else self.work.beta
        bare = Expected(replace(self.work, problem=str(problem), beta=beta, fused=None), self.fills)
        y64, kernel = bare.exact(), Kernel(problem, self.work.pass_)
        errors = [
            float(np.linalg.norm(bare.undivided(kernel, candidate) - y64))
            for candidate in _host().enumerate(kernel)
            if candidate.status == "CUDNN_STATUS_SUCCESS"
        ]
        return max(errors, default=0.0)

    def undivided(self, kernel: Kernel, candidate: Candidate) -> Array:
        """Return the result of an algorithm of the host engine."""
        problem, memory = self.problem, {}
        for name in "xwy":
            fill, size = self.fills[self.work.buffers[name]]
            if name == self.output and not self.work.beta:
                fill = Fill("nan", problem.data_type)
            count = size // problem.element_size
            memory[name] = _host().allocate(size)
            values = loaded(bytes_of(fill, size), (count,), problem.data_type, "nchw")
            memory[name].write(problem.data_type, values)
        scratch = _host().allocate(candidate.workspace)
        parts = [(problem.mini_batch, candidate.algorithm)]
        scales = {"alpha": self.work.alpha, "beta": self.work.beta}
        _host().prepare(kernel, parts).execute(*memory.values(), scratch, **scales)
        shape = shapes(problem)[self.output]
        values = memory[self.output].read(problem.data_type, math.prod(shape))
        return loaded(values.view(np.uint8), shape, "f64", problem.layout)

    def is_met_by(self, output: bytes) -> bool:
        data = np.frombuffer(output, np.uint8)
        shape = shapes(self.problem)[self.output]
        y = loaded(data, shape, self.problem.data_type, self.problem.layout)
        rounding = EPSILON[self.problem.data_type] * float(np.linalg.norm(self.exact(absolute=True)))
        error = float(np.linalg.norm(y - self.exact()))
        return error <= 2 * self.undivided_error() + 2 * rounding

"""Convolutions in fp64 by their definition, and comparisons of engines with them.

Programs that tests start import this module. So it does not import hypothesis, which takes half of
their start.
"""

import re
from itertools import product

import numpy as np
import numpy.typing as npt

from mucudnn._native import STRIDED, Engine, Problem, group_copies, group_kernel
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import is_tiled

Array = npt.NDArray[np.float64]
PASSES = ("forward", "backward_data", "backward_filter")
# The algorithm of each pass that runs every problem, without workspace.
IMPLICIT_GEMM = {"forward": "IMPLICIT_GEMM", "backward_data": "ALGO_1", "backward_filter": "ALGO_1"}
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52, "f16": 2.0**-10, "bf16": 2.0**-7}
ALL_TYPES = tuple(EPSILON)

# The rounding errors that an algorithm may make, in units of its scale. Winograd's transforms amplify them
# by about ten (Lavin and Gray 2016, section 5.2).
ROUNDINGS = {"WINOGRAD_NONFUSED": 16, "FFT_TILING": 4}


def convolve(problem: Problem, pass_: str, x: Array, w: Array, y: Array) -> Array:
    """Return the output of the pass, channels first. The tensor that the pass writes gives only its shape."""
    spatial = range(problem.dims)
    padded = np.zeros((*x.shape[:2], *(problem.input[a] + 2 * problem.padding[a] for a in spatial)))
    inside = tuple(slice(problem.padding[a], problem.padding[a] + problem.input[a]) for a in spatial)
    if pass_ != "backward_data":
        padded[:, :, *inside] = x
    out = np.zeros({"forward": y, "backward_data": x, "backward_filter": w}[pass_].shape)
    ic, oc = problem.in_channels // problem.groups, problem.out_channels // problem.groups
    for group, tap in product(range(problem.groups), product(*(range(k) for k in problem.kernel))):
        c, k = slice(group * ic, (group + 1) * ic), slice(group * oc, (group + 1) * oc)
        begin = [tap[a] * problem.dilation[a] for a in spatial]
        window = tuple(
            slice(begin[a], begin[a] + problem.stride[a] * (problem.output[a] - 1) + 1, problem.stride[a])
            for a in spatial
        )
        if pass_ == "forward":
            out[:, k] += np.einsum("nc...,kc->nk...", padded[:, c, *window], w[k, :, *tap])
        elif pass_ == "backward_data":
            padded[:, c, *window] += np.einsum("nk...,kc->nc...", y[:, k], w[k, :, *tap])
        else:
            taken = padded[:, c, *window].reshape(problem.mini_batch, ic, -1)
            out[k, :, *tap] = np.einsum("ncp,nkp->kc", taken, y[:, k].reshape(problem.mini_batch, oc, -1))
    return padded[:, :, *inside] if pass_ == "backward_data" else out


OUTPUT = {"forward": "y", "backward_data": "x", "backward_filter": "w"}
EPILOGUES = (  # those that cuDNN has engines for, and other orders
    "+bias",
    "+relu",
    "+add",
    "+bias+relu",
    "+add+bias+relu",
    "+add0+bias+relu",
    "+0.5add-0.25+bias+relu",
    "+bias+add+relu",
    "+relu+bias+add0+add",
)


def steps(epilogue: str) -> list[tuple[str, float, float]]:
    """Return the name of each operation, the factor of what comes before it, and that of what it adds."""
    form = re.compile(r"([-\d.e]*?)(bias|add|relu)([-\d.e]*)")
    matches = map(form.fullmatch, epilogue.split("+")[1:])
    return [(m[2], float(m[1] or 1), float(m[3] or 1)) for m in matches if m]


def operand_shapes(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that the epilogue reads, channels first, by operand0, operand1, ..."""
    like_y = (problem.mini_batch, problem.out_channels, *problem.output)
    channels = (1, problem.out_channels, *(1 for _ in problem.output))
    return {
        f"operand{place}": channels if name == "bias" else like_y
        for place, (name, _, _) in enumerate(steps(problem.epilogue))
        if name != "relu"
    }


def with_epilogue(problem: Problem, result: Array, operands: dict[str, Array]) -> Array:
    """Apply the epilogue to the result of a convolution."""
    for place, (name, scale, factor) in enumerate(steps(problem.epilogue)):
        if name == "relu":
            result = np.maximum(result, 0)
        else:
            result = scale * result + (factor * operands[f"operand{place}"] if factor else 0)
    return result


def epilogue_scale(problem: Problem, result: Array, operands: dict[str, Array]) -> Array:
    """Apply the epilogue with the absolute values of its factors: the scale of rounding errors."""
    for place, (name, scale, factor) in enumerate(steps(problem.epilogue)):
        if name != "relu":
            result = abs(scale) * result + (abs(factor) * operands[f"operand{place}"] if factor else 0)
    return result


def cancelling_values(problem: Problem, largest: float, seed: int = 1) -> dict[str, Array]:
    """Return x, w and y with a small filter gradient, although both halves of the mini-batch have large ones.

    The first half adds about `largest` to each tap of the gradient, and the second half subtracts it.
    """
    random = np.random.default_rng(seed)
    half = problem.mini_batch // 2
    scale = np.sqrt(largest / (half * np.prod(problem.output) * 0.75**2))
    values = {
        "x": random.uniform(0.5, 1, (problem.mini_batch, problem.in_channels, *problem.input)),
        "w": np.zeros((problem.out_channels, problem.in_channels // problem.groups, *problem.kernel)),
        "y": random.uniform(0.5, 1, (problem.mini_batch, problem.out_channels, *problem.output)),
    }
    values["y"][half:] *= -1
    return {name: scale * value for name, value in values.items()}


class CheckedKernel:
    """A kernel on an engine, with random tensors that all runs share, and its results in fp64."""

    def __init__(self, engine: Engine, kernel: Kernel, seed: int = 1) -> None:
        self.engine, self.kernel = engine, kernel
        self.problem, self.pass_ = kernel.problem, kernel.pass_
        p, group_channels = kernel.problem, kernel.problem.in_channels // kernel.problem.groups
        self.shapes = {
            "x": (p.mini_batch, p.in_channels, *p.input),
            "w": (p.out_channels, group_channels, *p.kernel),
            "y": (p.mini_batch, p.out_channels, *p.output),
        }
        self.operands = operand_shapes(p)
        self.shapes.update(self.operands)
        self.memory, self.values = {}, {}
        for index, (name, shape) in enumerate(self.shapes.items()):
            count = int(np.prod(shape))
            self.memory[name] = engine.allocate(count * p.element_size)
            self.memory[name].fill_random(p.data_type, count, seed + index)
            self.values[name] = self._load(name)

    def _load(self, name: str) -> Array:
        shape = self.shapes[name]
        flat = self.memory[name].read(self.problem.data_type, int(np.prod(shape)))
        if self.problem.layout == "nchw":
            return flat.reshape(shape)
        return np.moveaxis(flat.reshape(shape[0], *shape[2:], shape[1]), -1, 1)

    def workspace(self, parts: list[tuple[int, str]]) -> int:
        """Return the workspace of a division in bytes."""
        most = 0
        for size, algorithm in parts:
            if is_tiled(algorithm):  # the engine lists few of them
                most = max(most, self.engine.prepare(self.kernel.at(size), [(size, algorithm)]).workspace)
                continue
            candidates = self.engine.enumerate(self.kernel.at(size))
            most = max(most, next(c.workspace for c in candidates if c.algorithm == algorithm))
        return most

    def runnable(self, mini_batch: int) -> list[str]:
        """Return the names of the algorithms that run this pass at that mini-batch."""
        candidates = self.engine.enumerate(self.kernel.at(mini_batch))
        return [c.algorithm for c in candidates if c.status == "CUDNN_STATUS_SUCCESS"]

    def run(
        self,
        parts: list[tuple[int, str]],
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        over: float | None = None,
    ) -> Array:
        """Return the output of a division. Before the run it holds random values, or `over` everywhere."""
        self._fill_output(over)
        x, w, y, *operands = self.memory.values()
        self.engine.prepare(self.kernel, parts).execute(
            x, w, y, self.engine.allocate(self.workspace(parts)), alpha=alpha, beta=beta, operands=operands
        )
        return self._load(OUTPUT[self.pass_])

    def run_groups(
        self,
        groups: list[tuple[int, list[tuple[int, str]]]],
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
        over: float | None = None,
        of_inputs: bool = False,
    ) -> Array:
        """Return the output of channel groups, like `run` for a division."""
        self._fill_output(over)
        x, w, y, *operands = self.memory.values()
        division = self.engine.prepare_groups(self.kernel, groups, of_inputs)
        assert division.workspace == self.group_workspace(groups, of_inputs=of_inputs)
        division.execute(
            x, w, y, self.engine.allocate(division.workspace), alpha=alpha, beta=beta, operands=operands
        )
        return self._load(OUTPUT[self.pass_])

    def group_workspace(
        self, groups: list[tuple[int, list[tuple[int, str]]]], *, of_inputs: bool = False
    ) -> int:
        """Return the workspace of channel groups in bytes."""
        most = 0
        for channels, parts in groups:
            kernel = group_kernel(self.kernel, channels, of_inputs)
            for size, algorithm in parts:
                candidates = self.engine.enumerate(kernel.at(size))
                own = next(c for c in candidates if c.algorithm == algorithm)
                strided = STRIDED in own.notes.split()
                copies = group_copies(self.kernel, channels, size, of_inputs, strided)
                most = max(most, own.workspace + copies)
        return most

    def _fill_output(self, over: float | None) -> None:
        name = OUTPUT[self.pass_]
        memory, count = self.memory[name], int(np.prod(self.shapes[name]))
        if over is None:
            memory.fill_random(self.problem.data_type, count, 1 + list(self.shapes).index(name))
        else:
            memory.write(self.problem.data_type, np.full(count, over))

    def exact(self, *, alpha: float = 1.0, beta: float = 0.0) -> Array:
        """Return the output in fp64."""
        result = alpha * convolve(self.problem, self.pass_, *(self.values[name] for name in "xwy"))
        result = result + beta * self.values[OUTPUT[self.pass_]] if beta else result
        return with_epilogue(self.problem, result, self.values)

    def magnitude(self, *, alpha: float = 1.0, beta: float = 0.0) -> float:
        """Return ‖ |α| (|x| ∗ |w|) + |β| |y0| ‖, the scale of the rounding errors of sums of products."""
        absolute = {name: np.abs(values) for name, values in self.values.items()}
        result = abs(alpha) * convolve(self.problem, self.pass_, *(absolute[name] for name in "xwy"))
        result = result + abs(beta) * absolute[OUTPUT[self.pass_]]
        return float(np.linalg.norm(epilogue_scale(self.problem, result, absolute)))

    def norm(self, *, alpha: float = 1.0, beta: float = 0.0) -> float:
        """Return a bound of the result's norm, the scale for transforms, which spread errors over a tile."""
        output = OUTPUT[self.pass_]
        inputs = [np.linalg.norm(values) for name, values in self.values.items() if name != output]
        taps = np.sqrt(np.prod(self.problem.kernel))
        return float(
            abs(alpha) * inputs[0] * inputs[1] * taps + abs(beta) * np.linalg.norm(self.values[output])
        )

    def tolerance(self, algorithm: str, *, alpha: float = 1.0, beta: float = 0.0) -> float:
        """Return the largest allowed norm of the error of an algorithm's result."""
        algorithm = algorithm.partition(".")[0]
        if algorithm in ROUNDINGS:
            scale = ROUNDINGS[algorithm] * self.norm(alpha=alpha, beta=beta)
        else:
            scale = 2 * self.magnitude(alpha=alpha, beta=beta)
        return EPSILON[self.problem.data_type] * scale


def assert_each_algorithm_is_right(checked: CheckedKernel, alpha: float, beta: float) -> None:
    """Compare every algorithm's result on the whole mini-batch with the definition.

    With a beta of 0 the output is full of NaN before, so an algorithm that reads it is wrong.
    """
    exact, over = checked.exact(alpha=alpha, beta=beta), None if beta else np.nan
    for algorithm in checked.runnable(checked.problem.mini_batch):
        result = checked.run([(checked.problem.mini_batch, algorithm)], alpha=alpha, beta=beta, over=over)
        assert np.linalg.norm(result - exact) <= checked.tolerance(algorithm, alpha=alpha, beta=beta), (
            algorithm
        )

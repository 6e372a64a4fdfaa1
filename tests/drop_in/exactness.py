"""The check that the error of a divided convolution is bounded by that of undivided ones.

With y the output, u the worst output of an algorithm run undivided, y64 the result in fp64 and all norms
Euclidean: |y - y64| <= 2 |u - y64| + 2 eps | |alpha| (|x| * |w|) + |beta| |y0| |.
"""

import ctypes

import numpy as np
import numpy.typing as npt
from graph_operations import loaded
from player import Fill, Player, bytes_of
from reference import EPSILON, OUTPUT, convolve, epilogue_scale, operand_shapes, with_epilogue
from scripts import Allocate, Script, Work
from shim_client import shapes

from mucudnn._native import Problem, host_library, parse_descriptor

Array = npt.NDArray[np.float64]
Fills = dict[str, tuple[Fill, int]]
ALGORITHMS = {"forward": 8, "backward_data": 6, "backward_filter": 7}
NAMES = {"forward": "Forward", "backward_data": "BackwardData", "backward_filter": "BackwardFilter"}
_library: list[ctypes.CDLL] = []


def _host() -> ctypes.CDLL:
    if not _library:
        _library.append(ctypes.CDLL(host_library()))
    return _library[0]


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
        bare = Expected(
            Work(
                str(self.problem).partition("+")[0], self.work.pass_, self.work.alpha,
                0.0 if self.work.fused else self.work.beta, self.work.buffers,
            ),
            self.fills,
        )  # fmt: skip
        y64 = bare.exact()
        errors = [
            float(np.linalg.norm(y - y64))
            for algorithm in range(ALGORITHMS[self.work.pass_])
            if (y := bare.undivided(algorithm)) is not None
        ]
        return max(errors, default=0.0)

    def undivided(self, algorithm: int) -> Array | None:
        """Return the result of an algorithm of the host engine, or None if it cannot run."""
        script, problem = Script(), self.problem
        describe(script, problem)
        for name in "xwy":
            fill, size = self.fills[self.work.buffers[name]]
            if name == self.output and not self.work.beta:
                fill = Fill("nan", problem.data_type)
            script.add(Allocate(name, ("fixed", size), fill))
        ask(script, self.work.pass_, algorithm)
        script.add(Allocate("scratch", ("first", ("size:",)), Fill("scratch")))
        execute(script, problem, self.work, algorithm, outputs=(self.output,))
        player = Player(_host())
        last = player.play(script.steps)[-1]
        player.close()
        if last.status != 0:
            return None
        data = np.frombuffer(last.outputs[self.output], np.uint8)
        return loaded(data, shapes(problem)[self.output], problem.data_type, problem.layout)

    def is_met_by(self, output: bytes) -> bool:
        data = np.frombuffer(output, np.uint8)
        shape = shapes(self.problem)[self.output]
        y = loaded(data, shape, self.problem.data_type, self.problem.layout)
        rounding = EPSILON[self.problem.data_type] * float(np.linalg.norm(self.exact(absolute=True)))
        error = float(np.linalg.norm(y - self.exact()))
        return error <= 2 * self.undivided_error() + 2 * rounding


def describe(script: Script, problem: Problem) -> None:
    """Create a problem's handle and descriptors in the slots handle, x, w, y and convolution."""
    types = {"f32": 0, "f64": 1, "f16": 2, "bf16": 9}
    type_, format_ = types[problem.data_type], int(problem.layout == "nhwc")
    sizes = shapes(problem)
    script.call("cudnnCreate", ("new", "handle"))
    for name in "xy":
        script.call("cudnnCreateTensorDescriptor", ("new", name))
        script.call(
            "cudnnSetTensorNdDescriptorEx", ("slot", name), ("int", format_), ("int", type_),
            ("int", len(sizes[name])), ("ints", sizes[name]),
        )  # fmt: skip
    script.call("cudnnCreateFilterDescriptor", ("new", "w"))
    script.call(
        "cudnnSetFilterNdDescriptor", ("slot", "w"), ("int", type_), ("int", format_),
        ("int", len(sizes["w"])), ("ints", sizes["w"]),
    )  # fmt: skip
    script.call("cudnnCreateConvolutionDescriptor", ("new", "convolution"))
    script.call(
        "cudnnSetConvolutionNdDescriptor", ("slot", "convolution"), ("int", problem.dims),
        ("ints", problem.padding), ("ints", problem.stride), ("ints", problem.dilation), ("int", 1),
        ("int", int(problem.data_type == "f64")),
    )  # fmt: skip
    script.call("cudnnSetConvolutionGroupCount", ("slot", "convolution"), ("int", problem.groups))


def ask(script: Script, pass_: str, algorithm: int) -> None:
    """Ask for the workspace of an algorithm. The answer has the key `size:`."""
    x, w, y, convolution = (("slot", name) for name in ("x", "w", "y", "convolution"))
    descriptors = {
        "forward": (x, w, convolution, y),
        "backward_data": (w, y, convolution, x),
        "backward_filter": (x, y, convolution, w),
    }[pass_]
    script.call(
        f"cudnnGetConvolution{NAMES[pass_]}WorkspaceSize", ("slot", "handle"), *descriptors,
        ("int", algorithm), ("out", "size:", "INT64", 1),
    )  # fmt: skip


def execute(script: Script, problem: Problem, work: Work, algorithm: int, outputs: tuple[str, ...]) -> None:
    double = problem.data_type == "f64"
    x, w, y = ((("slot", name), ("buffer", name)) for name in "xwy")
    convolution = ("slot", "convolution")
    scratch = (("int", algorithm), ("buffer", "scratch"), ("size", "scratch"))
    inputs, output = {
        "forward": ((*x, *w), y),
        "backward_data": ((*w, *y), x),
        "backward_filter": ((*x, *y), w),
    }[work.pass_]
    script.call(
        f"cudnnConvolution{NAMES[work.pass_]}", ("slot", "handle"), ("scale", work.alpha, double), *inputs,
        convolution, *scratch, ("scale", work.beta, double), *output, outputs=outputs,
    )  # fmt: skip

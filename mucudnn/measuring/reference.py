"""The fp64 reference of a kernel's results, or of a piece of them where the whole would take too long.

A piece of forward or backward_data covers some of the samples. In backward_filter each value sums over all
samples, so a piece covers some of the output channels and reads the samples share by share.
The reference is always computed in NCHW, the layout of fp64 algorithms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt

from mucudnn._native import Engine, EngineError, Memory, Problem
from mucudnn.costs.records import SUCCESS
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.problems.kernels import Kernel

Array = npt.NDArray[np.float64]
MOST = 2**30  # bytes of a piece with more than one sample
FEW_CHANNELS = 8


@dataclass(frozen=True)
class Piece:
    """The part of a kernel that the reference computes.

    `problem` is this part in fp64, and its mini-batch a share of the `samples`. These are indices into the
    kernel's mini-batch, as `in_channels` and `out_channels` are ranges of its channels.
    """

    problem: Problem
    samples: tuple[int, ...]
    in_channels: range
    out_channels: range

    @property
    def memory(self) -> int:
        """The bytes of the tensors and of the NumPy arrays that fill them, which take as much again."""
        return 2 * extent(self.problem).total

    @property
    def shares(self) -> list[tuple[int, ...]]:
        """The samples of each run, in order."""
        size = self.problem.mini_batch
        return [self.samples[first : first + size] for first in range(0, len(self.samples), size)]


def piece_of(kernel: Kernel, room: int) -> Piece | None:
    """Return the piece of a kernel to compute within `room` bytes; None if `room` is too small.

    The piece is the whole kernel, evenly spread samples of it, or a few of its output channels.
    """
    problem = kernel.problem
    outputs = problem.out_channels // problem.groups
    piece = _choose_samples(_make_fp64_problem(problem, problem.groups, outputs), problem, room)
    if piece is None or piece.problem.mini_batch == problem.mini_batch or kernel.pass_ != "backward_filter":
        return piece
    # A few output channels: those of several small groups, or some of one large group.
    groups = min(problem.groups, max(1, FEW_CHANNELS // outputs))
    few = _make_fp64_problem(problem, groups, min(outputs, FEW_CHANNELS))
    return _choose_samples(few, problem, room, every_sample=True)


def _choose_samples(
    problem: Problem, whole: Problem, room: int, *, every_sample: bool = False
) -> Piece | None:
    single, double = (2 * extent(problem.replace(mini_batch=samples)).total for samples in (1, 2))
    if single > room:
        return None
    batch = whole.mini_batch
    size = min(batch, (min(room, max(single, MOST)) - single) // (double - single) + 1)
    some = range(batch) if every_sample else np.linspace(0, batch - 1, size).round().astype(int).tolist()
    return Piece(
        problem.replace(mini_batch=size),
        tuple(some),
        range(whole.in_channels - problem.in_channels, whole.in_channels),
        range(whole.out_channels - problem.out_channels, whole.out_channels),
    )


def _make_fp64_problem(problem: Problem, groups: int, outputs: int) -> Problem:
    """Return the problem in fp64 with `groups` groups of `outputs` output channels each.

    It has no epilogue, because few engines fuse one in fp64.
    """
    return Problem(
        mini_batch=problem.mini_batch,
        in_channels=groups * (problem.in_channels // problem.groups),
        out_channels=groups * outputs,
        input=problem.input,
        kernel=problem.kernel,
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
        groups=groups,
        data_type="f64",
    )


class Reference:
    """The fp64 results of a piece of a kernel on the values of its tensors."""

    def __init__(self, engine: Engine, kernel: Kernel, tensors: Tensors, piece: Piece) -> None:
        self._engine, self._whole, self._pass = engine, kernel.problem, kernel.pass_
        self._tensors, self._piece = tensors, piece

    def expected(self) -> Array | None:
        """Return the results in fp64, flattened; None if no algorithm runs in fp64."""
        shares = self._piece.shares
        t = Tensors.allocated(self._engine, extent(self._piece.problem))
        for number, samples in enumerate(shares):
            for memory, values in self._read_operands(t, samples):
                memory.write("f64", values.ravel())
            if not self._run(t, len(samples), beta=float(number > 0)):
                return None
        output, count = {
            "forward": (t.y, self._piece.problem.y_elements),
            "backward_data": (t.x, self._piece.problem.x_elements),
            "backward_filter": (t.w, self._piece.problem.w_elements),
        }[self._pass]
        result = output.read("f64", count)
        return self._apply_epilogue(result) if self._whole.epilogue else result

    def actual(self) -> Array:
        """Return the values that the kernel itself computed, flattened, from its tensors."""
        samples = self._piece.samples
        read = {"forward": self._read_y, "backward_data": self._read_x, "backward_filter": self._read_w}
        return read[self._pass](samples).ravel()

    def _read_operands(self, into: Tensors, samples: Sequence[int]) -> list[tuple[Memory, Array]]:
        """Return the input tensors of one share of the samples, each with the values to write into it."""
        read = [(into.w, self._read_w(samples))] if self._pass != "backward_filter" else []
        if self._pass != "backward_data":
            read.append((into.x, self._read_x(samples)))
        if self._pass != "forward":
            read.append((into.y, self._read_y(samples)))
        return read

    def _apply_epilogue(self, result: Array) -> Array:
        """Return the result after the epilogue of a fused forward convolution."""
        values, operands = result.reshape(len(self._piece.samples), -1), iter(self._tensors.operands)
        for operation, scale, factor in self._whole.epilogue_steps:
            if operation == "relu":
                values = np.maximum(values, 0)
            elif operation == "bias":
                bias = next(operands).read(self._whole.data_type, self._whole.out_channels)
                values = values + np.repeat(bias, values.shape[1] // bias.size)
            else:
                added = self._read_y(self._piece.samples, next(operands)).reshape(values.shape)
                values = scale * values + (factor * added if factor else 0)
        return values.ravel()

    def _read_x(self, samples: Sequence[int]) -> Array:
        whole = self._whole
        sizes = whole.in_channels, whole.input
        return self._read("x", self._tensors.x, *sizes, samples, self._piece.in_channels)

    def _read_y(self, samples: Sequence[int], memory: Memory | None = None) -> Array:
        source, whole = memory or self._tensors.y, self._whole
        return self._read("y", source, whole.out_channels, whole.output, samples, self._piece.out_channels)

    def _read_w(self, _: Sequence[int]) -> Array:
        channels, whole = self._whole.in_channels // self._whole.groups, self._whole
        filters = self._piece.out_channels
        return self._read("w", self._tensors.w, channels, whole.kernel, filters, range(channels))

    def _read(
        self,
        tensor: str,
        memory: Memory,
        channels: int,
        spatial: Sequence[int],
        samples: Sequence[int],
        wanted: range,
    ) -> Array:
        """Return some samples and channels of x, w or y, in NCHW, of shape (samples, channels, plane)."""
        plane, whole = prod(spatial), self._whole
        data_type = whole.y_type if tensor == "y" else whole.data_type
        values = np.empty((len(samples), len(wanted), plane))
        for place, sample in enumerate(samples):
            first = sample * channels * plane
            if whole.layouts[tensor] == "nchw":
                read = memory.read(data_type, len(wanted) * plane, first + wanted.start * plane)
                values[place] = read.reshape(-1, plane)
            else:
                read = memory.read(data_type, channels * plane, first)
                values[place] = read.reshape(plane, channels)[:, wanted.start : wanted.stop].T
        return values

    def _run(self, t: Tensors, samples: int, beta: float) -> bool:
        """Run the first algorithm that works, and return whether any did.

        Algorithms may fail even though the engine lists them as runnable.
        """
        engine, kernel = self._engine, Kernel(self._piece.problem, self._pass).at(samples)
        candidates = [c for c in engine.enumerate(kernel) if c.status == SUCCESS]
        for candidate in sorted(candidates, key=lambda candidate: candidate.workspace):
            workspace = allocate_workspace(engine, candidate.workspace)
            parts = [(samples, candidate.algorithm)]
            try:
                engine.execute(kernel, parts, t.x, t.w, t.y, workspace, beta=beta)
            except EngineError:
                continue
            return True
        return False

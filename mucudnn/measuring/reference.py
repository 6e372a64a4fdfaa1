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
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.candidates import runnable
from mucudnn.problems.kernels import Kernel

Array = npt.NDArray[np.float64]
MOST = 2**30  # bytes of a piece with more than one sample
FEW_CHANNELS = 8
_RESULTS = {"forward": "y", "backward_data": "x", "backward_filter": "w"}


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
        piece, result = self._piece, _RESULTS[self._pass]
        t, size = Tensors.allocated(self._engine, extent(piece.problem)), piece.problem.mini_batch
        for first in range(0, len(piece.samples), size):
            samples = piece.samples[first : first + size]
            for tensor in {"x", "w", "y"} - {result}:
                getattr(t, tensor).write("f64", self._read(tensor, samples).ravel())
            if not self._run(t, len(samples), beta=float(first > 0)):
                return None
        values: Array = getattr(t, result).read("f64", getattr(piece.problem, f"{result}_elements"))
        return self._apply_epilogue(values) if self._whole.epilogue else values

    def actual(self) -> Array:
        """Return the values that the kernel itself computed, flattened, from its tensors."""
        return self._read(_RESULTS[self._pass], self._piece.samples).ravel()

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
                added = self._read("y", self._piece.samples, next(operands)).reshape(values.shape)
                values = scale * values + (factor * added if factor else 0)
        return values.ravel()

    def _read(self, tensor: str, samples: Sequence[int], memory: Memory | None = None) -> Array:
        """Return some samples of x, w or y, in NCHW, of shape (samples, channels, plane).

        The channels are those of the piece; a filter has those of its group, and its filters as samples.
        """
        whole, piece = self._whole, self._piece
        channels = whole.in_channels if tensor == "x" else whole.out_channels
        wanted = piece.in_channels if tensor == "x" else piece.out_channels
        spatial, data_type = whole.input if tensor == "x" else whole.output, whole.data_type
        if tensor == "w":
            channels, spatial = whole.in_channels // whole.groups, whole.kernel
            samples, wanted = piece.out_channels, range(channels)
        elif tensor == "y":
            data_type = whole.y_type
        memory, plane = memory or getattr(self._tensors, tensor), prod(spatial)
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
        for candidate in sorted(
            runnable(engine.enumerate(kernel)), key=lambda candidate: candidate.workspace
        ):
            workspace = allocate_workspace(engine, candidate.workspace)
            parts = [(samples, candidate.algorithm)]
            try:
                engine.execute(kernel, parts, t.x, t.w, t.y, workspace, beta=beta)
            except EngineError:
                continue
            return True
        return False

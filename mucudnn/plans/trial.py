"""The trial of an algorithm on the device: whether the bits of a sample's result depend on the mini-batch."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from mucudnn._native import Engine, Memory
from mucudnn.costs.schema import TRIAL
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import extent
from mucudnn.problems.kernels import Kernel

Array = npt.NDArray[np.float64]
# Several draws are needed, because another order of additions often changes only one or two results, those
# that a library computes by its code for the end of a matrix, and even these may be equal by chance.
_DRAWS = 4
_FEW_CHANNELS = 8  # fewer products may cancel without rounding errors


def is_invariant(bench: Bench, kernel: Kernel, algorithm: str) -> bool:
    """Return whether a sample gets the bits that it gets alone, at each place and beside any neighbours.

    The cache keeps the outcome, so that other processes make no trial. Return False for tensors above the
    bench's memory cap: slices of one sample need no trial.
    """
    if extent(kernel.problem).total > bench.memory_cap:
        return False
    key = kernel.mini_batch, algorithm, bench.engine.driver
    row = bench.cache.find(TRIAL, bench.machine, kernel, *key)
    if row is not None:
        return bool(row["is_invariant"])
    outcome = _Trial(bench.engine, kernel, algorithm).has_equal_bits()
    values = dict(zip(TRIAL.own_key, key, strict=True), is_invariant=int(outcome))
    bench.cache.put(TRIAL, bench.machine, kernel, values)
    return outcome


class _Trial:
    """Runs of one algorithm on copies of a sample, and on the sample alone."""

    def __init__(self, engine: Engine, kernel: Kernel, algorithm: str) -> None:
        self._engine, self._kernel, self._algorithm = engine, kernel, algorithm
        self._random = np.random.default_rng(1)
        problem = kernel.problem
        self._is_forward = kernel.pass_ == "forward"
        self._written = (problem.y_elements if self._is_forward else problem.x_elements) // problem.mini_batch

    def has_equal_bits(self) -> bool:
        """Return whether all results had the same bits. Return False if they would hide differences."""
        problem, n = self._kernel.problem, self._kernel.mini_batch
        added = (problem.in_channels if self._is_forward else problem.out_channels) // problem.groups
        if added < _FEW_CHANNELS and problem.element_size == 2:
            return False
        for _ in range(_DRAWS):
            (sample, other), filter_ = self._draw(cancels=added >= _FEW_CHANNELS)
            if not self._is_same([sample] * n, sample, filter_):
                return False
        others = [np.full_like(other, np.nan) if place == n // 2 else other for place in range(1, n - 1)]
        if not self._is_same([sample, *others, sample], sample, filter_):
            return False
        # PyTorch's functions write the bias first, and add the convolution to it.
        for factors in ((1.0, 1.0), (1.5, 0.5)) * (_DRAWS // 2):
            (sample, _), filter_ = self._draw(cancels=False)
            if not self._is_same([sample] * n, sample, filter_, *factors):
                return False
        return True

    def _is_same(
        self, samples: Sequence[Array], sample: Array, filter_: Array, alpha: float = 1.0, beta: float = 0.0
    ) -> bool:
        """Return whether a sample gets the same bits wherever it is among `samples`."""
        # The values have the size of the sums, so that the rounding of both together shows.
        size = float(np.linalg.norm(sample) * np.linalg.norm(filter_)) / math.sqrt(self._written)
        before = size * self._random.standard_normal(self._written)
        (alone,) = self._run([sample], filter_, before, alpha, beta)
        rows = zip(samples, self._run(samples, filter_, before, alpha, beta), strict=True)
        bits = alone.view(np.int64)
        return all(np.array_equal(row.view(np.int64), bits) for own, row in rows if own is sample)

    def _run(
        self, samples: Sequence[Array], filter_: Array, before: Array, alpha: float, beta: float
    ) -> Iterator[Array]:
        count, engine = len(samples), self._engine
        own, w, out = map(self._store, (samples, [filter_], [before] * count))
        x, y = (own, out) if self._is_forward else (out, own)
        division = engine.prepare(self._kernel.at(count), ((count, self._algorithm),))
        division.execute(x, w, y, engine.allocate(division.workspace), alpha=alpha, beta=beta)
        type_, written = self._kernel.problem.data_type, self._written
        return (out.read(type_, written, place * written) for place in range(count))

    def _store(self, samples: Sequence[Array]) -> Memory:
        problem = self._kernel.problem
        memory = self._engine.allocate(problem.element_size * sum(values.size for values in samples))
        for place, values in enumerate(samples):
            memory.write(problem.data_type, values, place * values.size)
        return memory

    def _draw(self, *, cancels: bool) -> tuple[list[Array], Array]:
        """Return two samples and a filter in the kernel's layout.

        With `cancels` the products of two channels cancel. A result is then the sum of the rounding errors,
        which its own rounding would hide in a larger result.
        """
        problem, groups = self._kernel.problem, self._kernel.problem.groups
        channels = problem.out_channels // groups, problem.in_channels // groups
        kept, added = channels if self._is_forward else channels[::-1]
        taps = math.prod(problem.kernel)
        positions = math.prod(problem.input if self._is_forward else problem.output)
        filter_ = self._values(groups, kept, added, taps)
        samples = [self._values(groups, added, positions) for _ in range(2)]
        if cancels:
            half = added // 2
            first, second, rest = np.split(self._random.permutation(added), [half, 2 * half])
            filter_[:, :, second], filter_[:, :, rest] = -filter_[:, :, first], 0
            for sample in samples:
                sample[:, second] = sample[:, first]
        flat = [sample.reshape(-1, positions) for sample in samples]
        filter_ = filter_ if self._is_forward else filter_.swapaxes(1, 2)
        filter_ = filter_.reshape(problem.out_channels, -1, taps)
        if problem.layout == "nhwc":
            flat, filter_ = [sample.T for sample in flat], filter_.swapaxes(1, 2)
        return [sample.ravel() for sample in flat], filter_.ravel()

    def _values(self, *shape: int) -> Array:
        """Return values that differ in size."""
        return self._random.standard_normal(shape) * 2.0 ** self._random.integers(-6, 6, shape)

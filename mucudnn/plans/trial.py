"""The trial of an algorithm on the device: whether the bits of a sample's result depend on the mini-batch."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mucudnn._native import Engine
from mucudnn.problems.kernels import Kernel

Array = npt.NDArray[np.float64]
# Alpha and beta. PyTorch's functions write the bias first, and add the convolution to it.
_FACTORS = ((1.0, 0.0), (1.0, 1.0), (1.5, 0.5))
_RESULTS = 64  # compared at least, because two orders of additions may have the same sum
_tried: dict[tuple[object, ...], bool] = {}


def is_invariant(engine: Engine, kernel: Kernel, algorithm: str) -> bool:
    """Return whether a sample gets the bits that it gets alone, at each place and beside any neighbours."""
    key = engine.device, engine.library, engine.threads, str(kernel.problem), kernel.pass_, algorithm
    if key not in _tried:
        random, results = np.random.default_rng(1), _written(kernel)
        _tried[key] = all(_try(engine, kernel, algorithm, random) for _ in range(-(-_RESULTS // results)))
    return _tried[key]


def _written(kernel: Kernel) -> int:
    problem = kernel.problem
    return (problem.y_elements if kernel.pass_ == "forward" else problem.x_elements) // kernel.mini_batch


def _try(engine: Engine, kernel: Kernel, algorithm: str, random: np.random.Generator) -> bool:
    problem, n, written = kernel.problem, kernel.mini_batch, _written(kernel)
    is_forward = kernel.pass_ == "forward"
    sample, other, filter_ = _operands(kernel, random)
    # It has the size of the sums, so that the rounding of both together shows.
    terms = filter_.size / (problem.out_channels if is_forward else problem.in_channels)
    size = float(np.sqrt(terms) * sample.std() * filter_.std())
    added = np.zeros(written) if problem.element_size == 2 else size * random.standard_normal(written)

    def run(samples: Sequence[Array], alpha: float = 1.0, beta: float = 0.0) -> npt.NDArray[np.int64]:
        count, kind, memory = len(samples), problem.data_type, []
        for contents in (np.concatenate(samples), filter_, np.tile(added, count)):
            memory.append(engine.allocate(problem.element_size * contents.size))
            memory[-1].write(kind, contents)
        own, w, out = memory
        x, y = (own, out) if is_forward else (out, own)
        division = engine.prepare(kernel.at(count), ((count, algorithm),))
        division.execute(x, w, y, engine.allocate(division.workspace), alpha=alpha, beta=beta)
        return out.read(kind, count * written).view(np.int64).reshape(count, written)

    mixed = [sample, *[other] * (n - 2), sample]
    if n > 2:
        mixed[n // 2] = np.full_like(sample, np.nan)
    is_same_everywhere = all(
        np.array_equal(run([sample] * n, *factors), run([sample], *factors).repeat(n, 0))
        for factors in _FACTORS
    )
    return is_same_everywhere and np.array_equal(run(mixed)[[0, -1]], run([sample]).repeat(2, 0))


def _operands(kernel: Kernel, random: np.random.Generator) -> tuple[Array, Array, Array]:
    """Return two samples and a filter, in the kernel's layout, whose results show the order of additions.

    In 16 bits the products of two channels cancel, or those of two taps where there is one channel. A
    result is then the sum of the rounding errors, which its own rounding would hide in a larger result.
    """
    problem, is_forward = kernel.problem, kernel.pass_ == "forward"
    groups, taps = problem.groups, math.prod(problem.kernel)
    filter_ = _values(random, groups, problem.out_channels // groups, problem.in_channels // groups, taps)
    terms = filter_.swapaxes(1, 2) if is_forward else filter_
    positions = math.prod(problem.input if is_forward else problem.output)
    samples = [_values(random, groups, terms.shape[1], positions) for _ in range(2)]
    if problem.element_size == 2:
        has_channels = terms.shape[1] > 1
        terms = terms if has_channels else np.moveaxis(filter_, 3, 1)
        order = random.permutation(terms.shape[1])
        first, second, rest = np.split(order, [len(order) // 2, len(order) // 2 * 2])
        terms[:, second], terms[:, rest] = -terms[:, first], 0
        for sample in samples:
            if has_channels:
                sample[:, second] = sample[:, first]
            else:
                sample[...] = sample[..., :1]
    filter_ = filter_.reshape(problem.out_channels, -1, taps)
    samples = [sample.reshape(-1, positions) for sample in samples]
    if problem.layout == "nhwc":
        filter_, samples = filter_.swapaxes(1, 2), [sample.T for sample in samples]
    return samples[0].ravel(), samples[1].ravel(), filter_.ravel()


def _values(random: np.random.Generator, *shape: int) -> Array:
    """Return values that differ much in size."""
    return random.standard_normal(shape) * 2.0 ** random.integers(-8, 8, shape)

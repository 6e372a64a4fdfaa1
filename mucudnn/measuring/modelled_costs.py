"""Costs without measurements: modelled times on the host engine, the order of the heuristics on a GPU.

A host's time is linear in the work and in the bytes of a call. The factors, none of them negative, have the
least relative errors for recorded times of ResNets, VGG-11, SqueezeNet, MobileNetV2 and ConvNeXt, fp32, on
one thread with AVX-512. Only the order of the algorithms matters.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from mucudnn.costs.records import SUCCESS, Listed, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import EngineBench
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.solver import is_tiled

# On a GPU a later place in the heuristics' order, and a further slice, cost this share of a sample's time.
_PLACE, _SLICE = 0.02, 0.1
_CACHE = 8e6  # bytes of tensors and workspace above which a call takes longer


class _Work(NamedTuple):
    """The work of a call at a micro-batch size, in millions of products, of elements and of bytes.

    `channel_products` are the products of results and input channels, of which an FFT has some in each tile.
    """

    products: float
    workspace: float
    x: float
    y: float
    w: float
    channel_products: float
    beyond_cache: float


# The milliseconds for a unit of each part of the work.
_FACTORS = {
    ("backward_data", "ALGO_0", False): _Work(0.017, 0.1, 0.25, 0.13, 0.34, 0, 0.074),
    ("backward_data", "ALGO_0", True): _Work(0.095, 0, 1.4, 0, 42, 0, 0.13),
    ("backward_data", "ALGO_1", False): _Work(0.018, 0, 0.52, 0.42, 0.32, 0, 0.044),
    ("backward_data", "ALGO_1", True): _Work(0.013, 0, 0.31, 0.42, 1.2, 0.42, 0),
    ("backward_data", "FFT_TILING", False): _Work(0, 0.089, 0, 0.019, 7.9, 0.057, 0.12),
    ("backward_data", "WINOGRAD_NONFUSED", False): _Work(0.004, 0.054, 0, 0.27, 1.4, 0.00044, 0.13),
    ("backward_filter", "ALGO_0", False): _Work(0.016, 0.071, 0.43, 0.38, 0.17, 0, 0.068),
    ("backward_filter", "ALGO_0", True): _Work(0.11, 0.3, 1, 0, 35, 0, 0.061),
    ("backward_filter", "ALGO_1", False): _Work(0.018, 0, 0.41, 0.39, 0.18, 0, 0.045),
    ("backward_filter", "ALGO_1", True): _Work(0.02, 0, 0.35, 0.31, 0.57, 0.31, 0),
    ("backward_filter", "FFT_TILING", False): _Work(0, 0.082, 0, 0, 7, 0.052, 0.15),
    ("backward_filter", "WINOGRAD_NONFUSED", False): _Work(0.004, 0.045, 0.23, 0.26, 0.84, 0.00045, 0.14),
    ("forward", "FFT_TILING", False): _Work(0, 0.085, 0.29, 0, 6.6, 0.052, 0.13),
    ("forward", "GEMM", False): _Work(0.016, 0.096, 0.19, 0.22, 0.34, 0, 0.087),
    ("forward", "GEMM", True): _Work(0.11, 0.24, 1.1, 0, 32, 0, 0.064),
    ("forward", "IMPLICIT_GEMM", False): _Work(0.016, 0, 0.49, 0.62, 0.35, 0, 0.014),
    ("forward", "IMPLICIT_GEMM", True): _Work(0.012, 0, 0.4, 0.4, 0.81, 0.4, 0),
    ("forward", "WINOGRAD_NONFUSED", False): _Work(0.0043, 0.037, 0, 0.28, 0.84, 0.00048, 0.11),
}
_OTHERS = _Work(0.1, 0.5, 1.0, 1.0, 1.0, 0.1, 0.5)


def _family(kernel: Kernel, algorithm: str) -> tuple[str, str, bool]:
    """Return what the factors depend on: the pass, the algorithm, and whether the kernel is grouped."""
    return kernel.pass_, algorithm, kernel.problem.groups > 1


def is_modelled(kernel: Kernel, algorithm: str) -> bool:
    """Return whether the factors of an algorithm were fitted to measurements."""
    return _family(kernel, algorithm) in _FACTORS


def modelled_ms(kernel: Kernel, size: int, algorithm: str, workspace: int) -> float:
    """Return the milliseconds of an algorithm for one micro-batch, always the same for the same arguments."""
    problem = kernel.problem
    channels = problem.in_channels // problem.groups
    x = problem.in_channels * math.prod(problem.input) * size
    y = problem.out_channels * math.prod(problem.output) * size
    w = problem.out_channels * channels * math.prod(problem.kernel)
    beyond = max(4 * (x + y) + workspace - _CACHE, 0)
    parts = y * channels * math.prod(problem.kernel), workspace, x, y, w, y * channels, beyond
    factors = _FACTORS.get(_family(kernel, algorithm), _OTHERS)
    return sum(factor * (part / 1e6) for factor, part in zip(factors, parts, strict=True))


def modelled_table(bench: EngineBench, kernels: Iterable[Kernel], policy: str) -> CostTable:
    """Return the costs of kernels at the policy's sizes, always the same on the same device and library."""
    rows = {kernel: _modelled_rows(bench, kernel, policy) for kernel in kernels}
    return CostTable(bench.machine, rows, complete=False)


def _modelled_rows(bench: EngineBench, kernel: Kernel, policy: str) -> list[Measurement]:
    return [
        Measurement(size, candidate.algorithm, SUCCESS, candidate.workspace, candidate.notes, time_ms)
        for size, listed in bench.candidates(kernel, usable_sizes(policy, kernel)).items()
        for candidate, time_ms in _timed(bench, kernel, size, listed)
    ]


def _timed(bench: EngineBench, kernel: Kernel, size: int, listed: list[Listed]) -> list[tuple[Listed, float]]:
    admitted = [
        candidate
        for candidate in listed
        if bench.runner.admits(kernel, candidate.algorithm) and not is_tiled(candidate.algorithm)
    ]
    if bench.engine.kind != "cudnn":
        return [(c, modelled_ms(kernel, size, c.algorithm, c.workspace)) for c in admitted]
    admitted.sort(key=lambda candidate: not candidate.algorithm.startswith("eng"))  # only these are ranked
    return [(c, size * (1 + _PLACE * place) + _SLICE) for place, c in enumerate(admitted)]

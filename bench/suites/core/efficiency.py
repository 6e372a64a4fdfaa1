"""Implicit GEMM against OpenBLAS's sgemm of the same shape: a check that the baseline is not slow."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from bench.lib.openblas import OpenBlas
from bench.lib.record import Record
from bench.suites.core.division import kernels
from mucudnn._native import Engine, Problem, host_library
from mucudnn.measuring.buffers import Tensors, extent
from mucudnn.problems.kernels import Kernel

# Implicit GEMM's name in each pass.
ALGORITHM = {"forward": "IMPLICIT_GEMM", "backward_data": "ALGO_1", "backward_filter": "ALGO_1"}
ROUNDS = 3


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the median ratio of sgemm's time to implicit GEMM's for each kernel; both run interleaved."""
    engine, blas = Engine(host_library(), threads=1), OpenBlas()
    for pass_ in ALGORITHM:
        for kernel in kernels(pass_):
            yield _compare(engine, blas, kernel)


def _compare(engine: Engine, blas: OpenBlas, kernel: Kernel) -> Record:
    problem, case = kernel.problem, f"{kernel.name} {kernel.pass_}"
    tensors = Tensors.random(engine, problem, extent(problem))
    whole = engine.prepare(kernel, [(problem.mini_batch, ALGORITHM[kernel.pass_])])
    a, b, c, transpose_a, transpose_b = _operands(problem, kernel.pass_)
    sgemm, implicit = [], []
    for _ in range(ROUNDS + 1):
        sgemm.append(blas.sgemm_ms(a, b, c, transpose_a=transpose_a, transpose_b=transpose_b))
        (times,), _ = engine.compare([whole], tensors.x, tensors.w, tensors.y, None, rounds=1)
        implicit += times
    ratio = statistics.median(g / i for g, i in zip(sgemm[1:], implicit[1:], strict=True))
    details = {
        "sgemm_gflops": round(problem.flops / statistics.median(sgemm[1:]) / 1e6, 1),
        "implicit_gflops": round(problem.flops / statistics.median(implicit[1:]) / 1e6, 1),
    }
    return Record("efficiency", case, "implicit GEMM of raw sgemm", ratio, "ratio", details)


Matrix = npt.NDArray[np.float32]


def _operands(problem: Problem, pass_: str) -> tuple[Matrix, Matrix, Matrix, bool, bool]:
    """Return the matrices A, B and C of the product that a pass computes.

    The two booleans are True if sgemm transposes A and B.
    """
    pixels = problem.y_elements // problem.out_channels
    taps = problem.w_elements // problem.out_channels
    generator = np.random.default_rng(1)

    def random(rows: int, columns: int) -> Matrix:
        return generator.random((rows, columns), dtype=np.float32)

    w, columns, y = (problem.out_channels, taps), (taps, pixels), (problem.out_channels, pixels)
    if pass_ == "forward":
        return random(*w), random(*columns), random(*y), False, False
    if pass_ == "backward_data":
        return random(*w), random(*y), random(*columns), True, False
    return random(*y), random(*columns), random(*w), False, True

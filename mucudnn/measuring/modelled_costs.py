"""Costs without measurements: modelled times on the host engine, the order of the heuristics on a GPU.

A host's time is linear in the work and in the bytes of a call. `host_factors.json` has the factors, none of
them negative, with the least relative errors for recorded times. Only the order of the algorithms matters.
"""

import math
from collections.abc import Iterable
from pathlib import Path

from mucudnn.codec import convert, parse_json
from mucudnn.costs.records import SUCCESS, Listed, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import EngineBench
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.solver import is_tiled

# On a GPU a later place in the heuristics' order, and a further slice, cost this share of a sample's time.
_PLACE, _SLICE = 0.02, 0.1
_CACHE = 8e6  # bytes of tensors and workspace above which a call takes longer


# The milliseconds for a million of each part of the work, by family. They are read here, because a process
# may later lack what it needs to open a file.
_TEXT = Path(__file__).with_name("host_factors.json").read_text("utf-8")
_FACTORS = convert(parse_json(_TEXT)["ms per million"], dict[str, list[float]])


def _family(kernel: Kernel, algorithm: str) -> str:
    """Return what the factors depend on: the pass, the algorithm, and whether the kernel is grouped."""
    return f"{kernel.pass_} {algorithm}" + " grouped" * (kernel.problem.groups > 1)


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
    factors = _FACTORS.get(_family(kernel, algorithm), _FACTORS["others"])
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

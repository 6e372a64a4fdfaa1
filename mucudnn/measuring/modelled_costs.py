"""Costs without measurements: modelled times on the host engine, the order of the heuristics on a GPU."""

from collections.abc import Iterable

from mucudnn._native import MOST_SLICES_IN_PLACE
from mucudnn.costs.records import CANNOT_ACCUMULATE, SUCCESS, Listed, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.host_model import modelled_ms
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.solver import is_tiled

# On a GPU a later place in the heuristics' order, and a further slice, cost this share of a sample's time.
_PLACE, _SLICE = 0.02, 0.1


def modelled_table(bench: Bench, kernels: Iterable[Kernel], policy: str) -> CostTable:
    """Return the costs of kernels at the policy's sizes, always the same on the same device and library."""
    rows = {kernel: _modelled_rows(bench, kernel, policy) for kernel in kernels}
    return CostTable(bench.machine, rows, complete=False)


def _modelled_rows(bench: Bench, kernel: Kernel, policy: str) -> list[Measurement]:
    accumulator = bench.engine.accumulator_size(kernel, MOST_SLICES_IN_PLACE + 1)
    return [
        Measurement(
            size, candidate.algorithm, SUCCESS, candidate.workspace, candidate.notes, time_ms,
            accumulator=CANNOT_ACCUMULATE if accumulator is None else accumulator,
        )
        for size, listed in bench.candidates(kernel, usable_sizes(policy, kernel)).items()
        for candidate, time_ms in _timed(bench, kernel, size, listed)
    ]  # fmt: skip


def _timed(bench: Bench, kernel: Kernel, size: int, listed: list[Listed]) -> list[tuple[Listed, float]]:
    admitted = [
        candidate
        for candidate in listed
        if bench.runner.admits(kernel, candidate.algorithm) and not is_tiled(candidate.algorithm)
    ]
    if bench.engine.kind != "cudnn":
        return [(c, modelled_ms(kernel, size, c.algorithm, c.workspace)) for c in admitted]
    admitted.sort(key=lambda candidate: not candidate.algorithm.startswith("eng"))  # only these are ranked
    return [(c, size * (1 + _PLACE * place) + _SLICE) for place, c in enumerate(admitted)]

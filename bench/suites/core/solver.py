"""The time of the decisions: desirable sets and workspace division, on random inputs from a fixed seed."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import numpy as np

from bench.lib.process import median_ms
from bench.lib.record import Record
from mucudnn.solver import Configuration, MicroConfiguration, desirable_set, reuse_workspace, solve_division

SEED = 2018
MINI_BATCH = 1024
POLICIES = {"power_of_two": [2**k for k in range(11)], "all": range(1, MINI_BATCH + 1)}
# In the μ-cuDNN paper the ILP of ResNet-50's three passes had 562 binary variables, and GLPK took 5.46 ms.
NETWORKS = {"159 kernels, 562 configurations": [4] * 85 + [3] * 74, "150 kernels x 200": [200] * 150}


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the median time of every decision in ms."""
    for policy, sizes in POLICIES.items():
        yield _desirable_set(policy, sizes)
    yield _reuse_workspace()
    for network, sizes in NETWORKS.items():
        rng = np.random.default_rng(SEED)
        kernels = {kernel: pareto_optimal(rng, size) for kernel, size in enumerate(sizes)}
        for exact in (False, True):
            yield _divide(network, kernels, exact)


def _desirable_set(policy: str, sizes: Iterable[int]) -> Record:
    measured = measurements(np.random.default_rng(SEED), sizes, algorithms=8)
    ms, configurations = median_ms(lambda: desirable_set(measured, MINI_BATCH))
    details = {"thresholds": len({m.workspace for m in measured}), "found": len(configurations)}
    return Record("solver", f"desirable_set, N={MINI_BATCH}, {policy}", "time", ms, "ms", details)


def _reuse_workspace() -> Record:
    """Time the choice within one limit alone, which half of the measurements fit."""
    measured = measurements(np.random.default_rng(SEED), [2**k for k in range(7)], algorithms=8)
    limit = sorted(m.workspace for m in measured)[len(measured) // 2]
    ms, fastest = median_ms(lambda: reuse_workspace(measured, 64, limit))
    return Record("solver", "reuse_workspace, N=64", "time", ms, "ms", {"parts": len(fastest.parts)})


def _divide(network: str, kernels: dict[int, list[Configuration]], exact: bool) -> Record:
    least, most = (sum(front[i].workspace for front in kernels.values()) for i in (0, -1))
    total = least + (most - least) // 10
    ms, division = median_ms(lambda: solve_division(kernels, total, exact=exact))
    case = f"divide_workspace, {network}{', exact' if exact else ''}"
    return Record("solver", case, "time", ms, "ms", {"solver": division.solver, "gap": division.gap})


def measurements(rng: np.random.Generator, sizes: Iterable[int], algorithms: int) -> list[MicroConfiguration]:
    """Make micro-configurations of which none dominates another of its size, so that no solver drops any."""
    made = []
    for size in sizes:
        workspaces = np.sort(rng.integers(0, size * 2**22, algorithms)).tolist()
        times = np.sort(0.05 + size * rng.uniform(0.01, 0.04, algorithms))[::-1].tolist()
        made += [
            MicroConfiguration(size, f"algorithm {i}", ms, workspace)
            for i, (ms, workspace) in enumerate(zip(times, workspaces, strict=True))
        ]
    return made


def pareto_optimal(rng: np.random.Generator, size: int) -> list[Configuration]:
    """Make a desirable set of `size` configurations. Their largest workspace is at most 1 GiB.

    The first bytes of workspace save the most time. All of them together save a fifth to three quarters.
    """
    workspaces = np.sort(rng.choice(2 ** int(rng.integers(20, 31)), size, replace=False))
    saved = rng.uniform(0.2, 0.75) * np.sort(rng.random(size)) ** 0.5
    times = rng.uniform(0.5, 20) * (1 - saved)
    return [
        Configuration((MicroConfiguration(256, "algorithm", ms, workspace),))
        for ms, workspace in zip(times.tolist(), workspaces.tolist(), strict=True)
    ]

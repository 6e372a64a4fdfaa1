"""Configurations of one kernel, run whole and in turns: sums of separately timed parts promise too much."""

from __future__ import annotations

from collections.abc import Iterable

from mucudnn._native import Engine
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration


def run_whole(
    engine: Engine, kernel: Kernel, configurations: Iterable[Configuration], rounds: int
) -> dict[Configuration, list[float]]:
    """Return the time of each configuration in each round, in ms; one round before is not counted."""
    problem, different = kernel.problem, list(dict.fromkeys(configurations))
    tensors = Tensors.random(engine, problem, extent(problem))
    divisions = [engine.prepare(kernel, c.slices) for c in different]
    workspace = allocate_workspace(engine, max(division.workspace for division in divisions))
    times = engine.compare(divisions, tensors.x, tensors.w, tensors.y, workspace, rounds=rounds)
    return dict(zip(different, times, strict=True))

"""The least memory with which a training step can run."""

from __future__ import annotations

import math

from ..forks import no_fork
from ..highs import make_solver
from ..workspace.configuration import Infeasible
from .joint_program import MEMORY_UNITS, Terms
from .timeline import required_bytes
from .training import Choice, TrainingStep, offload_selected

NODES = 1000  # HiGHS visits at most this many nodes of its search tree


def find_floor(
    work: TrainingStep, *, offload: bool = True, recompute: bool = True
) -> tuple[int, tuple[Choice, ...]]:
    """Return the least memory with which a choice can run with the least workspaces, and that choice.

    The floor is exact to the byte if all tensors can be offloaded to host memory, or if nothing may be
    offloaded or recomputed. Otherwise HiGHS finds it: the bytes are always enough, and within about 1e-6 of
    the least unless the solver stops after NODES nodes.
    """
    choices = offload_selected(offload and tensor.is_idle for tensor in work.tensors)
    if not (work.fits_host(choices) and (offload or not recompute)):
        choices = _solve(work, offload, recompute)
    runs = work.runs(work.least_workspace)
    return max(required_bytes(runs, work.tensors, choices, work.link), default=0), choices


def check_floor(memory: int, floor: int) -> None:
    """Raise Infeasible if the memory is below the floor."""
    if memory < floor:
        raise Infeasible(
            f"the training step does not fit {memory} bytes: the least that it can run with is {floor} bytes",
            limit=memory,
            need=floor,
        )


def _solve(work: TrainingStep, offload: bool, recompute: bool) -> tuple[Choice, ...]:
    """Return the choice with the smallest largest step, if copies took no time."""
    with no_fork:
        import pulp

    tensors = work.tensors
    keep = offload_selected(False for _ in tensors)
    runs = work.runs(work.least_workspace)
    most = max(required_bytes(runs, tensors, keep, work.link), default=0)
    units = MEMORY_UNITS / max(most, 1)
    problem = pulp.LpProblem("floor", pulp.LpMinimize)
    peak = problem.add_variable("peak", lowBound=0)
    problem += peak
    resident: list[Terms] = [[] for _ in runs]
    constant = [run.fixed for run in runs]
    workspace = [problem.add_variable(f"w{s}", lowBound=run.workspace * units) for s, run in enumerate(runs)]
    gone, replayed = [], []
    for i, tensor in enumerate(tensors):
        o, r = (problem.add_variable(f"{name}{i}", cat=pulp.LpBinary) for name in "or")
        gone.append(o)
        replayed.append(r)
        problem += o + r <= int(tensor.is_idle)
        if not offload:
            problem += o <= 0
        if not (recompute and tensor.replay):
            problem += r <= 0
        for s in range(tensor.produced_at, tensor.last_use + 1):
            constant[s] += tensor.bytes
            if tensor.last_forward_use < s < tensor.first_backward_use:
                resident[s] += [(o, -tensor.bytes * units), (r, -tensor.bytes * units)]
    for i, tensor in enumerate(tensors):
        if tensor.replay is None:
            continue
        step = tensor.first_backward_use
        problem += workspace[step] - tensor.replay.workspace * units * replayed[i] >= 0
        for j in tensor.replay.sources:
            problem += replayed[i] + replayed[j] <= 1
            early = problem.add_variable(f"e{i}_{j}", lowBound=0)  # the source is back for the replay
            problem += early - replayed[i] - gone[j] >= -1
            for s in range(step, tensors[j].first_backward_use):
                resident[s].append((early, tensors[j].bytes * units))
    for s, terms in enumerate(resident):
        problem += peak - pulp.LpAffineExpression([*terms, (workspace[s], 1)]) >= constant[s] * units
    if work.host_memory is not None:
        host = pulp.LpAffineExpression((o, t.bytes * units) for o, t in zip(gone, tensors, strict=True))
        problem += host <= work.host_memory * units
    problem.solve(make_solver(NODES, mip_rel_gap=0, mip_abs_gap=0))
    is_solved = problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
    # PuLP calls an interrupted solver's answer feasible even if there is none.
    if not is_solved or not math.isfinite(problem.solverModel.getInfo().objective_function_value):
        return keep
    chosen: list[Choice] = []
    for o, r in zip(gone, replayed, strict=True):
        chosen.append("offload" if o.value() > 0.5 else "recompute" if r.value() > 0.5 else "keep")
    return tuple(chosen) if work.fits_host(chosen) else keep

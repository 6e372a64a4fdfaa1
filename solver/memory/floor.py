"""The least memory with which a training step can run."""

from __future__ import annotations

from ..highs import make_solver
from ..workspace.configuration import Infeasible
from .joint_program import MEMORY_UNITS
from .program import Amount, Program, Terms, read_choices
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
    tensors = work.settle(work.least_workspace)
    return max(required_bytes(runs, tensors, choices, work.link), default=0), choices


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
    tensors = work.settle(work.least_workspace)
    keep = offload_selected(False for _ in tensors)
    runs = work.runs(work.least_workspace)
    kept = required_bytes(runs, tensors, keep, work.link)
    units = MEMORY_UNITS / max(max(kept, default=0), 1)
    program = Program("floor")
    peak = program.number()
    away = Amount(program)
    changes: list[Terms] = [[] for _ in runs]  # each step's changes of the bytes that are gone
    workspace = [program.number(run.workspace * units) for run in runs]
    gone, replayed = [], []
    for tensor in tensors:
        o, r = program.binary(), program.binary()
        gone.append(o)
        replayed.append(r)
        program.add([(o, 1), (r, 1)], "<=", int(tensor.is_idle))
        if not offload:
            program.add([(o, 1)], "<=", 0)
        if not (recompute and tensor.replay):
            program.add([(r, 1)], "<=", 0)
        size = tensor.bytes * units
        if tensor.is_idle:
            changes[tensor.last_forward_use + 1] += [(o, size), (r, size)]
            changes[tensor.first_backward_use] += [(o, -size), (r, -size)]
    for i, tensor in enumerate(tensors):
        if tensor.replay is None:
            continue
        step = tensor.first_backward_use
        program.add([(workspace[step], 1), (replayed[i], -tensor.replay.workspace * units)], ">=", 0)
        for j in tensor.replay.sources:
            program.add([(replayed[i], 1), (replayed[j], 1)], "<=", 1)
            if step < tensors[j].first_backward_use:
                early = program.number()  # the source is back for the replay
                program.add([(early, 1), (replayed[i], -1), (gone[j], -1)], ">=", -1)
                changes[step].append((early, -tensors[j].bytes * units))
                changes[tensors[j].first_backward_use].append((early, tensors[j].bytes * units))
    for s, run in enumerate(runs):
        for variable, size in changes[s]:
            away.grow(variable, size)
        held = (kept[s] - run.workspace) * units
        program.add([(peak, 1), (workspace[s], -1), *away.now()], ">=", held)
    if work.host_memory is not None:
        host = [(o, t.bytes * units) for o, t in zip(gone, tensors, strict=True)]
        program.add(host, "<=", work.host_memory * units)
    program.minimise([(peak, 1.0)], make_solver(NODES, mip_rel_gap=0, mip_abs_gap=0))
    if not program.is_solved:
        return keep
    chosen = read_choices(gone, replayed)
    return chosen if work.fits_host(chosen) else keep

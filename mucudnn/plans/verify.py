"""Whether a plan still holds on this machine: its identity, its algorithms, their workspaces, its times."""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from mucudnn._native import Engine, Problem, refusal_of_slices, tile_copies, tile_problem
from mucudnn.costs.records import SUCCESS, slices
from mucudnn.listener import Listener
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent, measuring_extent
from mucudnn.measuring.measure import machine_of
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.sizes import format_size
from mucudnn.solver import MicroConfiguration

_SLOWER = 1.25
_ROUNDS = 5


@dataclass(frozen=True)
class Finding:
    """What one kernel of a plan is like now; `complaints` is empty where its choice can run as planned."""

    kernel: PlanKernel
    time_ms: float | None
    complaints: tuple[str, ...]

    @property
    def slower(self) -> float | None:
        """How many times as long it takes, where that is worth a word. A busy machine is no broken plan."""
        factor = 0 if self.time_ms is None else self.time_ms / self.kernel.chosen.time_ms
        return factor if factor > _SLOWER else None


def foreign(plan: Plan, engine: Engine) -> list[str]:
    """In what the machine differs from the one that the plan was measured on."""
    machine = machine_of(engine)
    now = {"device": machine.device, "library": machine.library, "threads": str(machine.threads)}
    return [
        f"the plan's {name} is '{plan.header[name]}', this one is '{value}'"
        for name, value in now.items()
        if plan.header.get(name, value) != value
    ]


def verify(plan: Plan, engine: Engine, cap: int, listener: Listener, *, run: bool) -> list[Finding]:
    """Look each kernel's choice and tiles up in the library, and where all is there, `run` the choice whole.

    `cap` bounds the bytes that are allocated; MucudnnError where a kernel's tensors take more.
    """
    findings = []
    for kernel in listener.track(plan.kernels, "Verifying"):
        complaints = tuple(_differences(kernel, engine))
        time = _time(kernel, engine, cap) if run and not complaints else None
        findings.append(Finding(kernel, time, complaints))
    return findings


def _differences(kernel: PlanKernel, engine: Engine) -> Iterator[str]:
    problem, pass_, parts = kernel.problem, kernel.pass_, kernel.chosen.parts
    accumulator = engine.accumulator_size(problem, pass_, len(parts))
    if accumulator is None:
        yield _why_not_summed(problem, pass_, len(parts), f"{len(parts)} micro-batches")
    else:
        for part in dict.fromkeys(parts):
            one = problem.replace(mini_batch=part.micro_batch)
            yield from _changes(engine, one, pass_, part, accumulator, kernel.chosen.workspace)
    if kernel.tiles is None:
        return
    parts = kernel.tiles.parts
    count = len(parts) * problem.mini_batch
    accumulator = engine.accumulator_size(problem, pass_, count)
    if accumulator is None:
        yield _why_not_summed(problem, pass_, count, f"{count} tiles")
        return
    for part in dict.fromkeys(parts):
        tile = tile_problem(problem, pass_, part.micro_batch)
        beside = accumulator + tile_copies(problem, pass_, part.micro_batch)
        for change in _changes(engine, tile, pass_, part, beside, kernel.tiles.workspace):
            yield f"tiles: {change}"


def _why_not_summed(problem: Problem, pass_: str, count: int, slices: str) -> str:
    return (
        refusal_of_slices(problem, pass_, count)
        or f"{slices} of {problem.data_type} cannot be summed on this device"
    )


def _changes(
    engine: Engine, problem: Problem, pass_: str, part: MicroConfiguration, beside: int, allowed: int
) -> Iterator[str]:
    """What is not as planned of one part, which needs `beside` bytes beside its algorithm's workspace."""
    found = engine.enumerate(problem, pass_)
    now = next((candidate for candidate in found if candidate.algorithm == part.algorithm), None)
    if now is None:
        yield f"{part.algorithm} is not there any more"
    elif now.status != SUCCESS:
        yield f"{part.algorithm} at {part.micro_batch} answers {now.status}"
    elif now.workspace + beside > allowed:
        yield (
            f"{part.algorithm} at {part.micro_batch} needs {format_size(now.workspace + beside)} of "
            f"workspace, the plan allows {format_size(allowed)}"
        )


def _time(kernel: PlanKernel, engine: Engine, cap: int) -> float:
    problem = kernel.problem
    measuring_extent(problem, cap, engine.bytes_beyond_caches)
    tensors = Tensors.random(engine, problem, extent(problem))
    workspace = allocate_workspace(engine, kernel.chosen.workspace)
    divisions = [engine.prepare(problem, kernel.pass_, slices(kernel.chosen))]
    (times,) = engine.compare(
        divisions, tensors.x, tensors.w, tensors.y, workspace, rounds=_ROUNDS, operands=tensors.operands
    )
    return statistics.median(times)

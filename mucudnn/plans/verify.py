"""The check that a plan still holds on this machine: machine, algorithms, workspaces and times."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mucudnn._native import (
    STRIDED,
    Candidate,
    Engine,
    group_copies,
    group_kernel,
    refusal_of_slices,
    tile_copies,
    tile_kernel,
)
from mucudnn.costs.records import STOCK, SUCCESS
from mucudnn.listener import Listener
from mucudnn.measuring.bench import machine_of
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent, measuring_extent
from mucudnn.measuring.source import runs_stock
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.problems.kernels import Kernel
from mucudnn.sizes import format_size
from mucudnn.solver import ChannelGroup, ChannelGroups, Configuration, MicroConfiguration, Tile, Tiling

_SLOWER = 1.25
_ROUNDS = 5


@dataclass(frozen=True)
class KernelCheck:
    """The present state of one kernel of a plan.

    `complaints` is empty if the choice can run as planned. `time_ms` is None if the choice was not run.
    """

    kernel: PlanKernel
    time_ms: float | None
    complaints: tuple[str, ...]

    @property
    def slower(self) -> float | None:
        """The present time over the planned one; None up to a factor that a busy machine explains."""
        factor = 0 if self.time_ms is None else self.time_ms / self.kernel.chosen.time_ms
        return factor if factor > _SLOWER else None


def foreign(plan: Plan, engine: Engine, names: Sequence[str] = ("device", "library", "threads")) -> list[str]:
    """Return a sentence for each of these values in which this machine and the plan's differ.

    A value that the plan's header lacks is not a difference.
    """
    machine = machine_of(engine)
    return [
        f"the plan's {name} is '{plan.header[name]}', this one is '{value}'"
        for name in names
        if plan.header.get(name, value := str(getattr(machine, name))) != value
    ]


def verify(plan: Plan, engine: Engine, listener: Listener, *, run: bool) -> list[KernelCheck]:
    """Look up the choice, the shares, the tiles and the groups of each kernel in the library.

    With `run`, time the choices whole: only those without complaints, and none with STOCK, which needs
    PyTorch. Raises MucudnnError if a kernel's tensors take more than half of the memory that is available at
    first.
    """
    cap = engine.available_memory // 2
    checks = []
    for kernel in listener.track(plan.kernels, "Verifying"):
        complaints = tuple(_find_complaints(kernel, engine))
        can_run = run and not complaints and not runs_stock(kernel.chosen)
        time = _time_choice(kernel, engine, cap) if can_run else None
        checks.append(KernelCheck(kernel, time, complaints))
    return checks


def _find_complaints(planned: PlanKernel, engine: Engine) -> Iterator[str]:
    kernel = planned.kernel
    yield from _find_complaints_about_choice(kernel, planned.chosen, engine)
    for count, share in planned.shares:
        for complaint in _find_complaints_about_choice(kernel, share, engine):
            yield f"share of {count}: {complaint}"
    if planned.groups is not None:
        yield from _find_complaints_about_groups(kernel, planned.groups, engine)
    if planned.tiles is not None:
        yield from _find_complaints_about_tiles(kernel, planned.tiles, engine)


def _find_complaints_about_choice(
    kernel: Kernel,
    choice: Configuration,
    engine: Engine,
    copies: Callable[[int, Candidate], int] = lambda *_: 0,
    most: int | None = None,
) -> Iterator[str]:
    """Yield what keeps a configuration from running as planned.

    Its kernel may be a group of the channels of another kernel, whose plan allows `most` bytes. A slice of
    that many samples then needs `copies` bytes beyond the algorithm's workspace.
    """
    parts = [part for part in choice.parts if part.algorithm != STOCK]  # PyTorch runs these
    allowed = choice.workspace if most is None else most
    accumulator = engine.accumulator_size(kernel, max(len(parts), 1))
    if accumulator is None:
        yield _explain_refusal(kernel, len(parts), f"{len(parts)} micro-batches")
        return
    for part in dict.fromkeys(parts):
        more = partial(copies, part.micro_batch)
        yield from _check_part(engine, kernel.at(part.micro_batch), part, accumulator, allowed, more)


def _group_copies(kernel: Kernel, group: ChannelGroup, samples: int, algorithm: Candidate) -> int:
    takes_strides = STRIDED in algorithm.notes.split()
    return group_copies(kernel, group.channels, samples, group.of_inputs, takes_strides)


def _find_complaints_about_groups(kernel: Kernel, groups: ChannelGroups, engine: Engine) -> Iterator[str]:
    for group in dict.fromkeys(groups.parts):
        divided, choice = group_kernel(kernel, group.channels, group.of_inputs), group.configuration
        copies = partial(_group_copies, kernel, group)
        for complaint in _find_complaints_about_choice(divided, choice, engine, copies, groups.workspace):
            yield f"groups of {group.channels} channels: {complaint}"


def _find_complaints_about_tiles(kernel: Kernel, tiles: Tiling, engine: Engine) -> Iterator[str]:
    count = len(tiles.parts) * kernel.mini_batch
    accumulator = engine.accumulator_size(kernel, count)
    if accumulator is None:
        yield _explain_refusal(kernel, count, f"{count} tiles")
        return
    for tile in dict.fromkeys(tiles.parts):
        extra = accumulator + tile_copies(kernel, tile.steps)
        tiled = tile_kernel(kernel, tile.steps)
        for complaint in _check_part(engine, tiled, tile, extra, tiles.workspace):
            yield f"tiles: {complaint}"


def _explain_refusal(kernel: Kernel, count: int, slices: str) -> str:
    return (
        refusal_of_slices(kernel, count)
        or f"{slices} of {kernel.problem.data_type} cannot be summed on this device"
    )


def _check_part(
    engine: Engine,
    kernel: Kernel,
    part: MicroConfiguration | Tile,
    extra: int,
    allowed: int,
    copies: Callable[[Candidate], int] = lambda _: 0,
) -> Iterator[str]:
    """Yield what keeps one part from running as planned.

    The part needs `extra` bytes, and those for copies, beside its algorithm's workspace; the plan allows
    `allowed` bytes in all.
    """
    listed = engine.enumerate(kernel)
    now = next((candidate for candidate in listed if candidate.algorithm == part.algorithm), None)
    if now is None:
        yield f"the library has no algorithm {part.algorithm} any more"
    elif now.status != SUCCESS:
        yield f"{part.algorithm} at {part.size} fails with {now.status}"
    elif (needed := now.workspace + extra + copies(now)) > allowed:
        yield (
            f"{part.algorithm} at {part.size} needs {format_size(needed)} of "
            f"workspace, but the plan allows {format_size(allowed)}"
        )


def _time_choice(planned: PlanKernel, engine: Engine, cap: int) -> float:
    problem = planned.problem
    measuring_extent(problem, cap, engine.bytes_beyond_caches)
    tensors = Tensors.random(engine, problem, extent(problem))
    workspace = allocate_workspace(engine, planned.chosen.workspace)
    divisions = [engine.prepare(planned.kernel, planned.chosen.slices)]
    (times,) = engine.compare(
        divisions, tensors.x, tensors.w, tensors.y, workspace, rounds=_ROUNDS, operands=tensors.operands
    )
    return statistics.median(times)

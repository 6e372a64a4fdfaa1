"""The check that a plan still holds: the machine, the algorithms, their workspaces and their times."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from mucudnn._native import (
    STRIDED,
    Engine,
    EngineError,
    group_copies,
    group_kernel,
    refusal_of_slices,
    second_lowest,
)
from mucudnn.costs.records import STOCK, SUCCESS
from mucudnn.forks import no_fork
from mucudnn.listener import Listener
from mucudnn.measuring.bench import machine_of
from mucudnn.measuring.buffers import measuring_extent
from mucudnn.measuring.intervals import UNDECIDED, name_side
from mucudnn.measuring.source import runs_stock
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.problems.kernels import Kernel
from mucudnn.sizes import format_size
from mucudnn.solver import ChannelGroup, MicroConfiguration, is_tiled

# A choice is slower than planned beyond both: a factor, and ms that the contents of the caches decide.
_SLOWER, _SLOWER_MS = 1.25, 0.1
HOLDS, SLOWER, FAILS = "holds", "slower", "fails"


@dataclass(frozen=True)
class KernelCheck:
    """The check of one kernel of a plan.

    `complaints` is empty if the choice can run as planned. `times_ms` is empty if the choice was not run, and
    `is_busy` says that other programs disturbed too many of its runs.
    """

    kernel: PlanKernel
    complaints: tuple[str, ...]
    times_ms: Sequence[float] = ()
    is_busy: bool = False

    @property
    def time_ms(self) -> float | None:
        """The present time."""
        return second_lowest(self.times_ms) if self.times_ms else None

    @property
    def result(self) -> str:
        """The result: FAILS if there are complaints, else HOLDS, SLOWER or UNDECIDED by the times.

        Other programs only make times longer, so disturbed times can show that a choice holds.
        """
        if self.complaints or not self.times_ms:
            return FAILS if self.complaints else HOLDS
        planned_ms = self.kernel.chosen.time_ms
        side = name_side(self.times_ms, max(_SLOWER * planned_ms, planned_ms + _SLOWER_MS))
        return {"above": UNDECIDED if self.is_busy else SLOWER, "below": HOLDS}.get(side, UNDECIDED)


def machine_differences(
    plan: Plan, engine: Engine, names: Sequence[str] = ("device", "library", "threads")
) -> list[str]:
    """Return a sentence for each named value that differs between the plan's header and this machine.

    A value that the header lacks is not a difference.
    """
    machine = machine_of(engine)
    return [
        f"the plan's {name} is '{plan.header[name]}', this one is '{value}'"
        for name in names
        if plan.header.get(name, value := str(getattr(machine, name))) != value
    ]


def verify(plan: Plan, engine: Engine, listener: Listener, *, run: bool) -> list[KernelCheck]:
    """Look up the choice, the shares and the groups of each kernel in the library.

    With `run`, time each choice whole unless it has complaints, or has STOCK, which needs PyTorch. Modelled
    times, of a choice that no clock made, are not compared. Raises
    MucudnnError if a kernel's tensors take more than half of the memory that is available at the start.
    """
    cap = engine.available_memory // 2
    run = run and plan.promise.is_timed
    checks = []
    for kernel in listener.track(plan.kernels, "Verifying"):
        complaints = tuple(_find_complaints(kernel, engine))
        can_run = run and not complaints and not runs_stock(kernel.chosen)
        timed = _time_choice(kernel, engine, cap) if can_run else ()
        checks.append(KernelCheck(kernel, complaints, *timed))
    return checks


def _find_complaints(planned: PlanKernel, engine: Engine) -> Iterator[str]:
    """Yield the reasons that keep the choice, shares and groups from running as planned."""
    kernel, groups = planned.kernel, planned.groups
    shares = ((f"share of {count}: ", share) for count, share in planned.shares)
    for name, choice in (("", planned.chosen), *shares):
        yield from _check_parts(engine, name, kernel, choice.parts, choice.workspace)
    for group in dict.fromkeys(groups.parts if groups else ()):
        assert groups is not None
        name, parts = f"groups of {group.channels} channels: ", group.configuration.parts
        divided = group_kernel(kernel, group.channels, group.of_inputs)
        copies = partial(_group_copies, kernel, group)
        yield from _check_parts(engine, name, divided, parts, groups.workspace, copies)


def _group_copies(kernel: Kernel, group: ChannelGroup, samples: int, notes: str) -> int:
    takes_strides = STRIDED in notes.split()
    return group_copies(kernel, group.channels, samples, group.of_inputs, takes_strides)


def _check_parts(
    engine: Engine,
    name: str,
    kernel: Kernel,
    parts: Sequence[MicroConfiguration],
    allowed: int,
    copies: Callable[[int, str], int] = lambda *_: 0,
) -> Iterator[str]:
    """Yield the reasons that keep the parts of a kernel from running as planned, each after the `name`.

    The plan allows `allowed` bytes. `copies` returns the bytes that a slice of some samples needs in addition
    to the workspace of an algorithm with some notes.
    """
    own = [part for part in parts if part.algorithm != STOCK]  # PyTorch runs the others
    count = max(len(own), 1)
    if refusal := refusal_of_slices(kernel, count):
        yield name + refusal
        return
    for part in dict.fromkeys(own):
        try:
            workspace, notes = _look_up(engine, kernel.at(part.micro_batch), part.algorithm)
        except EngineError as error:
            yield f"{name}{error}"
            continue
        if (needed := workspace + copies(part.size, notes)) > allowed:
            yield (
                f"{name}{part.algorithm} at {part.size} needs {format_size(needed)} of "
                f"workspace, but the plan allows {format_size(allowed)}"
            )


def _look_up(engine: Engine, kernel: Kernel, algorithm: str) -> tuple[int, str]:
    """Return the workspace and the notes of an algorithm. Raises EngineError if it cannot run now."""
    if is_tiled(algorithm):  # the library lists only some tiles
        try:
            return engine.prepare(kernel, [(kernel.mini_batch, algorithm)]).workspace, ""
        except EngineError as error:
            raise EngineError(f"{algorithm} at {kernel.mini_batch} cannot run: {error}") from None
    now = next((listed for listed in engine.enumerate(kernel) if listed.algorithm == algorithm), None)
    if now is None:
        raise EngineError(f"the library has no algorithm {algorithm} any more")
    if now.status != SUCCESS:
        raise EngineError(f"{algorithm} at {kernel.mini_batch} fails with {now.status}")
    return now.workspace, now.notes


def _time_choice(planned: PlanKernel, engine: Engine, cap: int) -> tuple[Sequence[float], bool]:
    """Return the ms of runs of a choice, and whether other programs disturbed too many of them."""
    with no_fork:
        from mucudnn.measuring.compare import REPEATS, run_interleaved  # it imports numpy

    measuring_extent(planned.problem, cap, engine.bytes_beyond_caches)
    (times,), is_busy = run_interleaved(engine, planned.kernel, [planned.chosen], REPEATS)
    return times, is_busy

"""The step from a call to a prepared division: decided once for a kernel and a limit, then looked up."""

import logging
import os
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import PurePath
from threading import Lock

from mucudnn import settings
from mucudnn._native import Division, Engine, EngineError, KeptFilter, Problem, refusal_of_slices
from mucudnn.arrays.call import (
    PassCall,
    PlanOrPath,
    geometry,
    known_plan,
    limit_of,
    make_exact,
)
from mucudnn.arrays.choosing import Choice, choose
from mucudnn.arrays.devices import ArrayDevice, device_of
from mucudnn.arrays.recent import Recent
from mucudnn.arrays.rescue import Rescue
from mucudnn.costs.records import DETERMINISTIC, FRAMEWORK, STOCK
from mucudnn.errors import MucudnnError, NothingFitsError, UsageError, raised_here
from mucudnn.measuring.engines import prepare
from mucudnn.measuring.source import Source, runs_stock
from mucudnn.output.text import micro_batches
from mucudnn.plans.parts.parts import slice_count
from mucudnn.plans.plan import LIMIT, Plan, PlanKernel
from mucudnn.plans.verify import machine_differences
from mucudnn.problems.descriptor import short_text
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.shapes import Shape
from mucudnn.sizes import format_size, parse_limit
from mucudnn.solver import ChannelGroups, Configuration, MicroConfiguration, is_tiled

_logger = logging.getLogger("mucudnn")


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A division made ready to run on its device, with the shapes of its tensors.

    `stock` has the sizes of the slices that the caller's framework runs, after the engine's `own` samples.
    `undivided_stock` is STOCK's undivided call; None if it exceeds the limit, cannot run or was not measured.
    """

    call: PassCall
    problem: Problem
    configuration: Configuration | ChannelGroups
    shapes: dict[str, Shape]
    plan: PlanOrPath | None  # kept alive, because the key of `_prepared` holds its id
    _device: ArrayDevice
    _division: Division | None  # None if the engine runs no sample
    _workspace: int
    stock: tuple[int, ...] = ()
    undivided_stock: MicroConfiguration | None = None
    _rescue: Rescue | None = None  # None for tiles, which are as small as can be, and batch-invariant slices
    is_busy: bool = False  # True if other programs disturbed a measurement that it depends on

    @property
    def own(self) -> int:
        """The number of samples that the engine runs."""
        return self.problem.mini_batch - sum(self.stock)

    @property
    def is_stock(self) -> bool:
        """True if the framework runs the whole mini-batch at once."""
        return self.stock == (self.problem.mini_batch,)

    @property
    def predicted_ms(self) -> float:
        """The predicted milliseconds of a run."""
        return self.configuration.time_ms

    @property
    def workspace(self) -> int:
        """The bytes of workspace that a run uses."""
        return max(self._workspace, self.configuration.workspace) if self.stock else self._workspace

    @property
    def kept_filter_size(self) -> int:
        """The bytes that `keep_filter` takes; 0 if the algorithms read w as it is."""
        return self._division.kept_filter_size if self._division else 0

    def keep_filter(self, w: int) -> KeptFilter:
        """Return the filter at this address in the algorithms' own form. Raises NothingFitsError."""
        assert self._division is not None
        try:
            return self._division.keep_filter(w)
        except (EngineError, MemoryError) as error:
            raise _make_error(error) from None

    def run(
        self,
        x: int,
        w: int,
        y: int,
        alpha: float = 1.0,
        beta: float = 0.0,
        stream: int = 0,
        owner: object = None,
        kept: KeptFilter | None = None,
        bias: int = 0,
    ) -> None:
        """Run the engine's samples on the addresses of tensors of these shapes; any thread may call this.

        A CUDA device runs the work on `stream`. If `owner` is one of the tensors, its library lends the
        workspace on such a device. If there is no memory for it, the convolution is divided further, down to
        single samples, with one warning. `kept` is what `keep_filter` made of w. On the CPU `bias` may
        be the address of one value for each channel of y, which a forward pass with beta 0 adds in its write
        of y. Raises NothingFitsError, MucudnnError.
        """
        assert self._division is not None

        def attempt(division: Division) -> None:
            own = kept if division is self._division else None
            self._device.run(
                lambda workspace: division.run(x, w, y, workspace, alpha, beta, stream, own, bias),
                division.workspace, stream, owner,
            )  # fmt: skip

        try:
            if self._rescue is None:
                attempt(self._division)
            else:
                self._rescue.run(self._division, attempt)
        except (EngineError, MemoryError) as error:
            raise _make_error(error) from None


# The key is a call with everything else that its division depends on. An entry takes about 3 KB.
_prepared: Recent[Hashable, Prepared] = Recent(4096)
_deciding = Lock()  # one decision at a time, because measurements would disturb each other


def _renew_lock() -> None:
    """Replace the lock in a child of fork(): the thread that held it may not exist there."""
    global _deciding
    _deciding = Lock()


os.register_at_fork(after_in_child=_renew_lock)


def prepared(
    call: PassCall,
    plan: PlanOrPath | None = None,
    *,
    stream: int = 0,
    only_plan: bool = True,
    source: Source | None = None,
    may_measure: bool = True,
) -> Prepared:
    """Return the division for a call on this stream: the plan's choice, else the fastest within the limit.

    With a `source` its division may have slices of STOCK, which the caller runs. With `may_measure` False,
    NotMeasuredError is raised for a kernel that the cache lacks, and UnfinishedError within a paced budget
    that is spent.

    A kernel that was never measured is measured now, and the cache keeps the measurements. A kernel that the
    plan does not have is an error; with `only_plan` False it is decided as if there were no plan.

    Raises UsageError and ArgumentTypeError for arguments that make no convolution, UsageError also for a
    kernel that the plan lacks and for a stream in capture, NoEngineError, NothingFitsError and MucudnnError.
    """
    if call.device != "cpu":
        device_of(call).check_stream(stream)
    call = make_exact(call)
    identity = plan if isinstance(plan, str | PurePath) else id(plan)
    key = (call, os.environ.get(settings.WORKSPACE_LIMIT.variable), identity, only_plan, source, may_measure)
    ready = _prepared[key]
    if ready is None:
        with _deciding:
            ready = _prepared[key]  # another thread may have decided meanwhile
            if ready is None:
                try:
                    ready = _prepare(call, plan, only_plan, source, may_measure)
                except (EngineError, MemoryError) as error:
                    raise _make_error(error) from None
                _prepared[key] = ready
    return ready


def prepare_slices(call: PassCall, micro_batch: int, algorithm: str) -> Prepared:
    """Return a call's division into slices of one size, the last of which may be smaller, by one algorithm.

    Nothing is measured. Raises MucudnnError, EngineError.
    """
    problem, shapes = geometry(call)
    device = device_of(call)
    count, rest = divmod(problem.mini_batch, micro_batch)
    slices = [*[(micro_batch, algorithm)] * count, *([(rest, algorithm)] if rest else [])]
    division = device.engine.prepare(Kernel(problem, call.pass_), slices)
    parts = tuple(MicroConfiguration(size, algorithm, 0.0, division.workspace) for size, _ in slices)
    return Prepared(call, problem, Configuration(parts), shapes, None, device, division, division.workspace)


def decided(call: PassCall, plan: PlanOrPath | None) -> Prepared | None:
    """Return the division that an earlier call with this plan prepared; None if there was none."""
    exact = make_exact(call)
    for ready in _prepared.everything().values():
        is_same_plan = ready.plan is plan or (isinstance(plan, str) and ready.plan == plan)
        if is_same_plan and ready.call == exact:
            return ready
    return None


def _prepare(
    call: PassCall, plan: PlanOrPath | None, only_plan: bool, source: Source | None, may_measure: bool
) -> Prepared:
    problem, shapes = geometry(call)
    kernel = Kernel(problem, call.pass_)
    device = device_of(call)
    known = Plan() if plan is None else known_plan(plan)
    planned = known.find(kernel)
    if planned is not None:
        elsewhere = machine_differences(known, device.engine, ("engine", "device", "library"))
        if elsewhere:
            raise UsageError(f"the plan cannot be followed here: {'; '.join(elsewhere)}")
        limit = None if call.workspace is None else limit_of(call.workspace)
        if call.promise.batch_invariant and not known.promise.batch_invariant:
            raise UsageError(
                "the plan does not promise batch_invariant, because its choices depend on the mini-batch: "
                "make the plan with it"
            )
        configuration = _choose_planned(planned, limit)
        if call.deterministic:
            _check_deterministic(device.engine, kernel, configuration)
        choice = Choice(configuration)
        if isinstance(configuration, Configuration) and runs_stock(configuration):
            _check_stock(known, source)
    elif plan is not None and only_plan:
        raise _make_missing_error(known, kernel)
    else:
        limit = limit_of(call.workspace)
        if call.workspace is None and known.promise.batch_invariant and LIMIT in known.header:
            limit = parse_limit(known.header[LIMIT])  # a batch-invariant plan chooses for all kernels
        choice = choose(device.engine, kernel, limit, source, may_measure, call)
        configuration = choice.configuration
    if refusal := refusal_of_slices(kernel, slice_count(configuration)):
        raise UsageError(f"the plan cannot be followed: {refusal}; make the plan again")
    stock = tuple(part.size for part in configuration.parts if part.algorithm == STOCK)
    like = configuration  # groups of channels resemble the first one
    if isinstance(like, ChannelGroups):
        like = like.parts[0].configuration
    slices = tuple(part for part in like.slices if part[1] != STOCK)
    own = kernel.at(problem.mini_batch - sum(stock)) if slices else None
    try:
        division = prepare(device.engine, own, configuration, slices) if own else None
    except raised_here(EngineError, ValueError) as error:
        raise UsageError(
            f"the plan cannot run here, because it was made for another engine: {error}"
            if plan
            else str(error)
        ) from None
    needed = division.workspace if division else 0
    if planned is not None:
        _check_workspace(needed, configuration.workspace, limit, known)
    if _logger.isEnabledFor(logging.INFO):
        parts = micro_batches(configuration, " + ")
        scratch = max(needed, configuration.workspace if stock else 0)
        size = f"with {format_size(scratch)} of" if scratch else "without"
        _logger.info("%s of %s runs in %s, %s workspace", call.pass_, short_text(problem), parts, size)
    # Smaller slices could have other bits.
    has_tiles = any(is_tiled(algorithm) for _, algorithm in slices)
    can_shrink = own and not has_tiles and not call.promise.batch_invariant
    rescue = Rescue(device.engine, own, slices, needed) if own and can_shrink else None
    return Prepared(
        call, problem, configuration, shapes, plan, device, division, needed, stock, choice.undivided_stock,
        rescue, choice.is_busy,
    )  # fmt: skip


def _check_deterministic(engine: Engine, kernel: Kernel, chosen: Configuration | ChannelGroups) -> None:
    """Raise UsageError if an algorithm of a planned configuration may give other bits in another run."""
    if not isinstance(chosen, Configuration):
        raise UsageError(
            "the plan cannot be followed: it is not known whether groups of channels are deterministic"
        )
    for part in chosen.parts:
        listed = engine.enumerate(kernel.at(part.micro_batch)) if part.algorithm != STOCK else ()
        if any(c.algorithm == part.algorithm and DETERMINISTIC not in c.notes.split() for c in listed):
            raise UsageError(f"the plan cannot be followed: its {part.algorithm} is not deterministic")


def _check_stock(plan: Plan, source: Source | None) -> None:
    """Raise UsageError if this call or this framework cannot run STOCK as planned."""
    if source is None:
        raise UsageError(
            f"the plan's choice has {STOCK}, which PyTorch itself runs: only mucudnn.torch can follow it"
        )
    planned = plan.header.get(FRAMEWORK, source.machine.library)
    if planned != source.machine.library:
        raise UsageError(
            f"the plan cannot be followed here: its {STOCK} was measured with '{planned}', this one is "
            f"'{source.machine.library}'; make the plan again"
        )


def _check_workspace(needed: int, stated: int, limit: int | None, plan: Plan) -> None:
    """Raise UsageError if a planned division needs more workspace than the limit, or than its plan states.

    A plan without a header was made by hand, and may state no workspaces.
    """
    if limit is not None and needed > limit:
        allowed = f"the limit is {format_size(limit)}"
    elif plan.header and needed > stated:
        allowed = f"the plan states {format_size(stated)}"
    else:
        return
    raise UsageError(
        f"the plan cannot be followed: its choice needs {format_size(needed)} of workspace, but {allowed}; "
        "make the plan again"
    )


def _choose_planned(planned: PlanKernel, limit: int | None) -> Configuration | ChannelGroups:
    """Return the plan's groups or choice.

    If these exceed the limit, it is the fastest configuration of the desirable set within the limit. Raises
    NothingFitsError.
    """
    if planned.groups is not None and (limit is None or planned.groups.workspace <= limit):
        return planned.groups
    if limit is None or planned.chosen.workspace <= limit:
        return planned.chosen
    fitting = [c for c in planned.desirable if c.workspace <= limit]
    if not fitting:
        raise NothingFitsError(
            f"nothing in the plan for {planned.pass_} of {planned.problem} fits {format_size(limit)} "
            "of workspace"
        )
    return min(fitting, key=lambda configuration: configuration.time_ms)


def _make_missing_error(plan: Plan, kernel: Kernel) -> UsageError:
    others = [str(k.problem) for k in plan.kernels if k.pass_ == kernel.pass_]
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    there = ", ".join(others[:2]) + more if others else "none"
    return UsageError(f"the plan has no {kernel.pass_} of {kernel.problem}: of this pass it has {there}")


def _make_error(error: Exception) -> MucudnnError:
    if isinstance(error, MemoryError):
        return NothingFitsError(f"there is not enough memory for this convolution: {error or 'none is left'}")
    return MucudnnError(f"this convolution failed: {error}")

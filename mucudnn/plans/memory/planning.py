"""The memory planner: from a network and its costs to a memory plan."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mucudnn.errors import NothingFitsError, UsageError, shown
from mucudnn.listener import Listener
from mucudnn.plans.decide import nothing_fits
from mucudnn.plans.memory.events import Events, find_events
from mucudnn.plans.memory.parts import PlannedKernel, PlannedStep, PlannedTensor
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.memory.traced import Trace
from mucudnn.plans.memory.training_step import Costs, Work, count_work
from mucudnn.plans.plan import LIMIT, promise_fields
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.promises import USUAL, Promise
from mucudnn.sizes import format_size, round_up, spell_limit
from mucudnn.solver import Configuration, Infeasible
from mucudnn.solver.memory.copies import CopySteps
from mucudnn.solver.memory.planner import decide_memory

POLICIES = ("joint", "none", "all", "conv", "dynamic")
QUIET = Listener()
ALIGNMENT = 512  # bytes; PyTorch allocates multiples of them, and so does the slab


@dataclass(frozen=True)
class MemoryOptions:
    """The limits of a memory plan, and the means that it may use.

    - `memory`: bytes for all that the training step allocates. `host_memory`: of the slab, None for no limit.
    - `workspace`: the most bytes of each kernel's workspace, None for no limit.
    - `promise`: what the results promise, in the costs' kernels too.
    - `policy`: joint, or a policy of vDNN.
    - `recompute`, `offload`: False to forbid it.
    - `exact`: also ask the solver for the optimum of the integer program.
    """

    memory: int
    policy: str = "joint"
    workspace: int | None = None
    recompute: bool = True
    offload: bool = True
    host_memory: int | None = None
    exact: bool = False
    promise: Promise = USUAL

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise UsageError(f"{shown(self.policy)} is not a policy: there are {', '.join(POLICIES)}")
        if self.policy != "joint" and not self.offload:
            raise UsageError(
                f"the policy {self.policy} offloads by its own rules: omit --no-offload, or use policy joint"
            )


def plan_network(
    network: Network, costs: Costs, options: MemoryOptions, *, name: str = "", listener: Listener = QUIET
) -> MemoryPlan:
    """Return the memory plan of a network that was not traced. Raises UsageError, NothingFitsError."""
    allowed = limit_workspace(costs, options.workspace)
    work = count_work(network, allowed, host_memory=options.host_memory)
    return _plan(network, work, allowed, options, name, None, listener)


def plan_trace(
    trace: Trace, costs: Costs, options: MemoryOptions, *, name: str = "", listener: Listener = QUIET
) -> MemoryPlan:
    """Return the memory plan of a traced model. Raises UsageError, NothingFitsError."""
    allowed = limit_workspace(costs, options.workspace)
    work = count_trace(trace, allowed, options.host_memory)
    return _plan(trace.network, work, allowed, options, name, trace, listener)


def count_trace(trace: Trace, costs: Costs, host_memory: int | None) -> Work:
    """Return the training step of a traced model."""
    return count_work(
        trace.network,
        costs,
        tensors=list(trace.saved),
        replays=trace.replays,
        host_memory=host_memory,
        block=ALIGNMENT,
        held=trace.held,
    )


def limit_workspace(costs: Costs, workspace: int | None) -> Costs:
    """Return the costs without configurations above a workspace. Raises NothingFitsError."""
    if workspace is None:
        return costs
    fitting: dict[Kernel, Sequence[Configuration]] = {}
    for kernel, configurations in costs.kernels.items():
        fitting[kernel] = [choice for choice in configurations if choice.workspace <= workspace]
        if not fitting[kernel]:
            raise nothing_fits(kernel, configurations, workspace)
    return replace(costs, kernels=fitting)


def _plan(
    network: Network,
    work: Work,
    allowed: Costs,
    options: MemoryOptions,
    name: str,
    trace: Trace | None,
    listener: Listener,
) -> MemoryPlan:
    if network.turn == len(network.steps):
        raise UsageError("the network has no backward steps, so it saves nothing: plan a training step")
    try:
        decision = decide_memory(
            work.numbers,
            options.memory,
            policy=options.policy,  # type: ignore[arg-type]
            recompute=options.recompute,
            offload=options.offload,
            exact=options.exact,
            track=listener.track,
        )
    except Infeasible as error:
        raise NothingFitsError(_explain(name, options, error)) from None
    timeline = decision.timeline
    settled = work.numbers.settle(decision.configurations)
    offloaded = [i for i, choice in enumerate(decision.choices) if choice == "offload"]
    fetch_order = list(dict.fromkeys(copy.tensor for copy in timeline.copies if copy.direction == "in"))
    events: dict[int, Events] = {}
    peak = timeline.peak
    if trace is not None:
        events, held = find_events(trace, work.numbers, decision, options.memory)
        peak = max(held)
    places = _lay_out_slab(work, offloaded)
    tensors = []
    no_bounds = CopySteps()
    for i, tensor in enumerate(work.tensors):
        choice = decision.choices[i]
        module, packs = ("", ()) if trace is None else trace.saved[tensor.name]
        _, sources = trace.replays[tensor.name] if trace and choice == "recompute" else ((), ())
        release, fetch = events.get(i, (None, None))
        planned = PlannedTensor(
            tensor.name, tensor.shape, tensor.data_type, tensor.bytes, choice, settled.tensors[i], i, module,
            packs, release, fetch, places.get(i), sources, decision.schedule.get(i, no_bounds),
        )  # fmt: skip
        tensors.append(planned)
    modules = {} if trace is None else trace.modules
    kernels = []
    for place, index in zip(work.kernels, decision.configurations, strict=True):
        module, call = modules.get(place.step.name, (place.step.backward_of or place.step.name, 0))
        desirable = tuple(allowed.kernels[place.kernel])
        kernels.append(
            PlannedKernel(place.step.name, module, call, place.kernel, desirable[index], desirable)
        )
    inputs = [tensor for tensor in network.tensors if tensor.kind == "input"]
    return MemoryPlan(
        network=name,
        batch=inputs[0].shape[0] if inputs and inputs[0].shape else 0,
        device=allowed.device,
        costs=allowed.summary,
        policy=options.policy,
        memory=options.memory,
        floor=decision.floor,
        peak=peak,
        average=timeline.average,
        time_ms=timeline.time_ms,
        unlimited_ms=work.unlimited_ms,
        exposed_ms=timeline.exposed_ms,
        link=allowed.link,
        tensors=tuple(tensors),
        kernels=tuple(kernels),
        steps=tuple(
            PlannedStep(step.name, cost.time_ms, cost.fixed, cost.workspace)
            for step, cost in zip(network.steps, settled.steps, strict=True)
        ),
        fetch_order=tuple(fetch_order),
        model="" if trace is None else trace.fingerprint,
        inputs=() if trace is None else trace.inputs,
        host_bytes=sum(round_up(work.tensors[i].bytes, ALIGNMENT) for i in offloaded),
        sources=allowed.sources,
        header=_header(options),
        bound_ms=decision.bound_ms,
        traced=network,
    )


def _header(options: MemoryOptions) -> dict[str, str]:
    fields = promise_fields(options.promise)
    return {**fields, LIMIT: spell_limit(options.workspace)} if fields else {}


def _explain(name: str, options: MemoryOptions, error: Infeasible) -> str:
    label = name or "the network"
    if error.need is None:
        return f"{label}: {error}"
    return (
        f"{label} does not fit {options.memory} bytes ({format_size(options.memory)}) with the policy "
        f"{options.policy}: its floor is {error.need} bytes ({format_size(error.need)})"
    )


def _lay_out_slab(work: Work, offloaded: Sequence[int]) -> dict[int, int]:
    """Return the offset of each offloaded tensor in the slab, one after the other."""
    sizes = [round_up(work.tensors[i].bytes, ALIGNMENT) for i in offloaded]
    return dict(zip(offloaded, itertools.accumulate(sizes, initial=0), strict=False))

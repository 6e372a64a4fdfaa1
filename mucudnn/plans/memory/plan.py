"""Memory plans: the choice for each saved tensor and the configuration of each kernel, within a budget.

`mucudnn.torch.apply` runs a plan. It counts the storages that PyTorch saves: the n-th is the tensor whose
order is n. Each saving of a tensor is a *pack*. The plan gives the moments of the copies as positions among
the packs, because packs are the events that a program can observe.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mucudnn.codec import Count, Document
from mucudnn.errors import UsageError
from mucudnn.plans.memory.parts import LEAST_BYTES, PlannedKernel, PlannedStep, PlannedTensor
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.solver.memory.copies import CopySteps, Link
from mucudnn.solver.memory.timeline import Timeline, simulate
from mucudnn.solver.memory.training import StepCost, TrainingStep


@dataclass(frozen=True)
class MemoryPlan(Document, kind="memory plan", version=2):
    """The decision for a training step within `memory` bytes. All sizes are bytes, all times milliseconds.

    - `network`, `batch`: the name of the network, and the mini-batch of its input.
    - `model`: the fingerprint of the model, empty for a network that was not traced. `inputs`: the data types
      and shapes of its example input.
    - `device`: the device that the costs belong to. `costs`: "measured" or "modelled", for the kernels;
      `sources` says so for each part.
    - `floor`: the least memory with which the policy has a plan.
    - `peak`, `average`: the most bytes in memory, and their mean over time, as simulated.
    - `time_ms`, `exposed_ms`: the training step, and the part of it that waits for copies.
    - `unlimited_ms`: the training step on the same costs without a limit, undivided.
    - `host_bytes`: the size of the slab. `link`: the copy engines.
    - `tensors`: all managed tensors by order. `fetch_order`: the offloaded ones, in the order of copies in.
    - `bound_ms`: the least time that any plan within the memory takes, proven; 0 for the policies of vDNN.
    - `header`: the fields of the modules' own plans. With a promise it has the promise and the limit.
    """

    network: str
    batch: Count
    device: str
    costs: str
    policy: str
    memory: Count
    floor: Count
    peak: Count
    average: float
    time_ms: float
    unlimited_ms: float
    exposed_ms: float
    link: Link
    tensors: tuple[PlannedTensor, ...]
    kernels: tuple[PlannedKernel, ...]
    steps: tuple[PlannedStep, ...]
    fetch_order: tuple[Count, ...] = ()
    model: str = ""
    inputs: tuple[str, ...] = ()
    host_bytes: Count = 0
    least_bytes: Count = LEAST_BYTES
    sources: dict[str, str] = field(default_factory=dict)
    bound_ms: float = 0.0
    header: dict[str, str] = field(default_factory=dict)
    traced: Network | None = field(default=None, compare=False, repr=False)

    @property
    def gap(self) -> float:
        """The most that another plan could save, as a fraction of `time_ms`, and 1 if `bound_ms` is 0."""
        return max(1 - self.bound_ms / self.time_ms, 0.0) if self.time_ms else 0.0

    def for_module(self, module: str) -> Plan:
        """Return the plan of one module's kernels, for the functions of `mucudnn.torch`.

        A kernel that the module runs several times gets the configuration with the least workspace, because
        that one fits every time and gives equal bits.
        """
        own: dict[Kernel, PlannedKernel] = {}
        for k in self.kernels:
            if k.module == module and (k.kernel not in own or k.workspace < own[k.kernel].workspace):
                own[k.kernel] = k
        chosen = own.values()
        return Plan(
            self.header, tuple(PlanKernel(k.kernel, 1, k.chosen, k.desirable or (k.chosen,)) for k in chosen)
        )

    def check(self, *, model: str, device: str) -> None:
        """Raise UsageError if the plan is for another model or device."""
        if model != self.model:
            raise UsageError(
                f"the memory plan is for another model: its fingerprint is {self.model or 'empty'}, "
                f"this model's is {model}. Plan this model"
            )
        if device != self.device:
            raise UsageError(
                f"the memory plan is for the device {self.device}, not for {device}: plan on this device"
            )

    def simulate(self) -> Timeline:
        """Return the timeline of the plan's training step, on the plan's costs."""
        steps = tuple(StepCost(step.time_ms, step.fixed, step.workspace) for step in self.steps)
        return simulate(
            TrainingStep(steps, tuple(tensor.saved for tensor in self.tensors), (), self.link),
            [tensor.choice for tensor in self.tensors],
            memory=self.memory,
            schedule={
                i: tensor.copies
                for i, tensor in enumerate(self.tensors)
                if tensor.choice == "offload" and tensor.copies != CopySteps()
            },
        )

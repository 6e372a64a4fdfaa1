"""A training step in numbers: steps, saved tensors, kernels, and the link to host memory.

The steps are in the order in which they run, first forward, then backward. Times are milliseconds, memory is
bytes, and steps and tensors are named by their indices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, TypeAlias

from ..workspace.configuration import Costed
from .copies import Link

Choice: TypeAlias = Literal["keep", "offload", "recompute"]
"""The treatment of a saved tensor between its last forward use and its first backward use."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """One step without the kernels that `TrainingStep.kernels` lists.

    Args:
        time_ms: milliseconds of all other work.
        fixed: bytes in memory during the step, without saved tensors and workspaces: parameters, gradients,
            and tensors that no backward step needs.
        workspace: bytes that its other work needs beside these.
    """

    time_ms: float
    fixed: int
    workspace: int = 0

    def __post_init__(self) -> None:
        _check_time("time_ms of a step", self.time_ms)
        _check_bytes("the fixed bytes of a step", self.fixed)


@dataclass(frozen=True, slots=True)
class Replay:
    """The way to compute a tensor again, just before its first backward use.

    Args:
        time_ms: milliseconds of the steps that run again, without `kernels`.
        sources: the saved tensors that these steps read, which must be in memory then.
        workspace: bytes that these steps need besides sources, result and the workspace of `kernels`.
        kernels: the kernels of these steps, which run again with the configuration of their forward step,
            because equal bits need equal algorithms.
    """

    time_ms: float
    sources: tuple[int, ...] = ()
    workspace: int = 0
    kernels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_time("time_ms of a replay", self.time_ms)
        _check_bytes("the workspace of a replay", self.workspace)


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor that a forward step writes and a backward step reads.

    Args:
        name: the name in messages.
        bytes: its memory.
        produced_at: the step that writes it.
        last_forward_use: the last forward step that writes or reads it.
        first_backward_use: the first backward step that reads it.
        last_use: the last step that reads it.
        replay: the way to compute it again, or None if it cannot be recomputed.
        is_kernel_input: True if a forward kernel reads it. The policy `conv` of vDNN offloads these.
    """

    name: str
    bytes: int
    produced_at: int
    last_forward_use: int
    first_backward_use: int
    last_use: int
    replay: Replay | None = None
    is_kernel_input: bool = False

    def __post_init__(self) -> None:
        _check_bytes(f"the size of tensor {self.name}", self.bytes)
        uses = (self.produced_at, self.last_forward_use, self.first_backward_use, self.last_use)
        if not 0 <= uses[0] <= uses[1] < uses[2] <= uses[3]:
            raise ValueError(
                f"tensor {self.name} is written and used at the steps {uses}, which are not in order"
            )

    @property
    def is_idle(self) -> bool:
        """True if steps run between its last forward use and its first backward use."""
        return self.first_backward_use > self.last_forward_use + 1


class Cost(NamedTuple):
    """A configuration's time and workspace, so that a long search need not sum its parts again."""

    time_ms: float
    workspace: int


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """A kernel of a step, with the configurations that it may run with.

    Args:
        step: the step that runs the kernel.
        configurations: the desirable set, with workspace ascending and time strictly descending.
    """

    step: int
    configurations: tuple[Costed, ...]

    def __post_init__(self) -> None:
        if not self.configurations:
            raise ValueError(f"a kernel of step {self.step} has no configuration")
        for before, after in zip(self.configurations, self.configurations[1:], strict=False):
            if not (before.workspace < after.workspace and before.time_ms > after.time_ms):
                raise ValueError(
                    f"the configurations of a kernel of step {self.step} are not a desirable set: "
                    "give them with workspace ascending and time descending"
                )


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """All that a memory planner must know.

    Args:
        steps: the steps in order.
        tensors: the saved tensors.
        kernels: the kernels, which within a step run one after another on one workspace.
        link: the copy engines.
        host_memory: the most bytes that all offloaded tensors may take together; None for no limit.

    Raises:
        ValueError: a step or a tensor does not exist, or a replay's source is not in memory at the replay.
    """

    steps: tuple[StepCost, ...]
    tensors: tuple[SavedTensor, ...]
    kernels: tuple[KernelChoice, ...]
    link: Link
    host_memory: int | None = None

    def __post_init__(self) -> None:
        for kernel in self.kernels:
            if not 0 <= kernel.step < len(self.steps):
                raise ValueError(f"there is no step {kernel.step}, which a kernel names")
        for tensor in self.tensors:
            if tensor.last_use >= len(self.steps):
                raise ValueError(f"there is no step {tensor.last_use}, the last use of tensor {tensor.name}")
            for k in tensor.replay.kernels if tensor.replay else ():
                if not 0 <= k < len(self.kernels):
                    raise ValueError(f"there is no kernel {k}, which the replay of {tensor.name} names")
        check_replays(self.tensors)

    def settle(self, configurations: Sequence[int]) -> TrainingStep:
        """Return the training step with one configuration of each kernel, named by its index.

        Their times and workspaces become those of the steps and replays that run the kernels.
        """
        steps = list(self.steps)
        for kernel, index in zip(self.kernels, configurations, strict=True):
            step, choice = steps[kernel.step], kernel.configurations[index]
            steps[kernel.step] = StepCost(
                step.time_ms + choice.time_ms, step.fixed, max(step.workspace, choice.workspace)
            )
        tensors = tuple(self._settle(tensor, configurations) for tensor in self.tensors)
        return replace(self, steps=tuple(steps), tensors=tensors, kernels=())

    def _settle(self, tensor: SavedTensor, configurations: Sequence[int]) -> SavedTensor:
        replay = tensor.replay
        if replay is None or not replay.kernels:
            return tensor
        time_ms, most = replay.time_ms, 0
        for k in replay.kernels:
            configuration = self.kernels[k].configurations[configurations[k]]
            time_ms += configuration.time_ms
            most = max(most, configuration.workspace)
        settled = Replay(time_ms, replay.sources, replay.workspace + most)
        return replace(tensor, replay=settled)

    @property
    def least_workspace(self) -> list[int]:
        """Each kernel's configuration with the least workspace: vDNN's memory-optimal algorithms."""
        return [0] * len(self.kernels)

    @property
    def fastest(self) -> list[int]:
        """Each kernel's fastest configuration: vDNN's performance-optimal algorithms."""
        return [len(kernel.configurations) - 1 for kernel in self.kernels]


def check_replays(tensors: Sequence[SavedTensor]) -> None:
    """Raise a ValueError if a replay's source is not a saved tensor, or is not in memory at the replay."""
    for tensor in tensors:
        for source in tensor.replay.sources if tensor.replay else ():
            if not 0 <= source < len(tensors):
                raise ValueError(f"the replay of tensor {tensor.name} reads tensor {source}: there is none")
            other = tensors[source]
            needed = tensor.first_backward_use
            if not other.last_forward_use < needed <= other.last_use:
                raise ValueError(
                    f"the replay of tensor {tensor.name} reads tensor {other.name}, "
                    f"which is not in memory at step {needed}"
                )


def check_choices(tensors: Sequence[SavedTensor], choices: Sequence[Choice]) -> None:
    """Raise a ValueError if a tensor is recomputed without a replay, or from another that is recomputed."""
    if len(choices) != len(tensors):
        raise ValueError(f"{len(choices)} choices are given for {len(tensors)} tensors")
    for tensor, choice in zip(tensors, choices, strict=True):
        if choice != "recompute":
            continue
        if tensor.replay is None:
            raise ValueError(f"tensor {tensor.name} cannot be recomputed")
        for source in tensor.replay.sources:
            if choices[source] == "recompute":
                raise ValueError(
                    f"tensor {tensor.name} is recomputed from tensor {tensors[source].name}, "
                    "which is recomputed too"
                )


def _check_time(label: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{label} is {value}, must be finite and not negative")


def _check_bytes(label: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"{label} is {value}, must not be negative")

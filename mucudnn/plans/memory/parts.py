"""The parts of a memory plan: tensors, kernels and steps."""

from dataclasses import dataclass

from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration
from mucudnn.solver.memory.copies import CopySteps
from mucudnn.solver.memory.training import Choice, SavedTensor

_UNBOUNDED = CopySteps()
LEAST_BYTES = 64 * 1024
"""A saved storage with fewer bytes is not managed: it stays on the device, and orders do not count it."""


@dataclass(frozen=True)
class PlannedTensor:
    """A saved tensor: how a running program recognises it, and what becomes of it.

    - `name`: its name in the network.
    - `shape`, `data_type`, `bytes`: its storage as it is saved first.
    - `order`: its position among the managed storages, by their first packs.
    - `module`: the qualified name of the innermost module that saves it first.
    - `packs`: the positions of its packs among the packs of all managed storages. Later ones save it again.
    - `choice`: keep, offload or recompute.
    - `release_at`: the pack at which the compute stream waits for the copy out, and drops the tensor. None
      for the end of the forward steps.
    - `fetch_at`: the pack whose unpacking starts the copy in. None for the first unpacking of all.
    - `slab_offset`: its place in the slab of host memory.
    - `sources`: the tensors from which operations compute it again.
    - `saved`: its lifetime and its replay, for the simulation. `copies`: the steps that bound its copies.
    """

    name: str
    shape: tuple[int, ...]
    data_type: str
    bytes: int
    choice: Choice
    saved: SavedTensor
    order: int = -1
    module: str = ""
    packs: tuple[int, ...] = ()
    release_at: int | None = None
    fetch_at: int | None = None
    slab_offset: int | None = None
    sources: tuple[str, ...] = ()
    copies: CopySteps = _UNBOUNDED


@dataclass(frozen=True)
class PlannedKernel:
    """A kernel of one step with its configuration. `call` counts the calls to the module within the step.

    `desirable` are the configurations from which `chosen` was chosen.
    """

    step: str
    module: str
    call: int
    kernel: Kernel
    chosen: Configuration
    desirable: tuple[Configuration, ...] = ()

    @property
    def pass_(self) -> str:
        """The pass of the kernel."""
        return self.kernel.pass_

    @property
    def workspace(self) -> int:
        """The bytes of workspace that the configuration needs."""
        return self.chosen.workspace


@dataclass(frozen=True)
class PlannedStep:
    """A step in numbers: milliseconds, bytes of all but saved tensors and workspace, bytes of workspace."""

    name: str
    time_ms: float
    fixed: int
    workspace: int = 0

"""A network traced from a program, with the events by which the program's saved tensors are recognised."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mucudnn.plans.memory.parts import LEAST_BYTES
from mucudnn.problems.network import Network


@dataclass(frozen=True)
class Trace:
    """A network and how a running program recognises its saved tensors.

    - `saved`: for each managed storage, in the order of saving, its tensor's name in the network, the module
      that saves it first, and its packs.
    - `replays`: for each of these tensors that can be computed again, the steps of the network that do so,
      and the saved tensors that they read.
    - `packed_at`: the first step that begins after each managed pack.
    - `unpacked_at`: the step that unpacks it, in the order of unpacking.
    - `modules`: for each step, the module and the number of its call.
    - `held`: for each activation of a forward step, the last step during which the program holds it. Python
      holds a module's argument while the module runs, although no step reads it any more.
    - `fused`: the first function for which a GPU has a fused kernel that saves other tensors than these, and
      the place of the call. None if there is no such function.
    """

    network: Network
    saved: dict[str, tuple[str, tuple[int, ...]]]
    replays: dict[str, tuple[tuple[str, ...], tuple[str, ...]]]
    packed_at: tuple[int, ...]
    unpacked_at: dict[int, int]
    modules: dict[str, tuple[str, int]]
    inputs: tuple[str, ...]
    fingerprint: str
    least_bytes: int = LEAST_BYTES
    held: Mapping[str, int] = field(default_factory=dict)
    fused: tuple[str, str] | None = None

    @property
    def turn(self) -> int:
        """The step that unpacks first."""
        return next(iter(self.unpacked_at.values()))

"""A network that was traced from a program, with the events by which the program's next run is recognised."""

from __future__ import annotations

from dataclasses import dataclass

from mucudnn.plans.memory_parts import LEAST_BYTES
from mucudnn.problems.network import Network


@dataclass(frozen=True)
class Saved:
    """A managed storage: its tensor's name in the network, its place in the order of saving, its packs.

    `modules` compute it again from the tensor `source`; they run the steps `replayed` of the network.
    """

    name: str
    order: int
    module: str
    packs: tuple[int, ...]
    modules: tuple[str, ...] = ()
    source: str = ""
    source_input: int | None = None
    replayed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trace:
    """A network and how a running program recognises its saved tensors.

    - `packed_at`: the step during which each managed pack happens. `unpacked_at`: the step that unpacks it.
    - `modules`: for each step, the module and the number of its call.
    """

    network: Network
    saved: tuple[Saved, ...]
    packed_at: tuple[int, ...]
    unpacked_at: dict[int, int]
    modules: dict[str, tuple[str, int]]
    inputs: tuple[str, ...]
    fingerprint: str
    least_bytes: int = LEAST_BYTES

    def replays(self) -> dict[str, tuple[tuple[str, ...], str]]:
        """Return the steps that compute each tensor again, and the saved tensor that they read."""
        return {
            one.name: (one.replayed, "" if one.source_input is not None else one.source)
            for one in self.saved
            if one.modules
        }

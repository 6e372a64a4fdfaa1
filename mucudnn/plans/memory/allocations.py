"""The order in which training steps allocate and free memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mucudnn.plans.memory.allocator import FREE, Event, count_live
from mucudnn.problems.network import Network
from mucudnn.problems.steps import PRESENT


class Update(NamedTuple):
    """An optimizer's allocations and releases in its first step, which makes the state, and in later ones."""

    first: tuple[Event, ...] = ()
    later: tuple[Event, ...] = ()

    @property
    def state(self) -> int:
        """The bytes of the state."""
        return count_live(self.first)[0]

    @property
    def scratch(self) -> int:
        """The most bytes that a step takes beside the state."""
        return count_live(self.later)[1]


@dataclass(frozen=True)
class Life:
    """The memory of a tensor that steps write, and of those that overwrite it.

    - `steps`: for each time that it is in memory, the first step with it and the first step without it again.
    - `added_at`: the step that writes a parameter's gradient into it; None if no step does.
    """

    name: str
    bytes: int
    steps: list[tuple[int, int]] = field(default_factory=list)
    added_at: int | None = None


def find_lives(
    network: Network, held: Mapping[str, int], away: Mapping[str, tuple[int, int]] | None = None
) -> list[Life]:
    """Return the memory of a network's steps.

    Args:
        network: the network.
        held: for some tensors, the last step during which the program holds them, even if no step reads them.
        away: for some tensors, the first step without them, and the step at which they are back.
    """
    lives: dict[str, Life] = {}
    written = [tensor for tensor in network.tensors if tensor.kind not in PRESENT]
    for tensor in sorted(written, key=lambda tensor: network.lifetimes[tensor.name].alive.start):
        alive = network.lifetimes[tensor.name].alive
        stop = max(alive.stop, min(held.get(tensor.name, 0) + 1, len(network.steps)))
        gone, back = (away or {}).get(tensor.name, (stop, stop))
        before = lives.get(tensor.in_place_of) or Life(tensor.name, tensor.bytes)
        start = before.steps.pop()[0] if before.steps else alive.start
        steps = [*before.steps, (start, gone), *([(back, stop)] if back < stop else [])]
        added_at = alive.start if tensor.kind == "gradient" else None
        lives[tensor.name] = Life(before.name, before.bytes, steps, added_at)
        lives.pop(tensor.in_place_of, None)
    return list(lives.values())


def list_events(
    network: Network, lives: Sequence[Life], scratch: Sequence[int], update: Update, *, accumulates: bool
) -> list[Event]:
    """Return what a training allocates and frees until the optimizer's second step has ended.

    The second step shows which memory of the first one can be used again.

    Args:
        network: the network of a training step.
        lives: the memory of its steps.
        scratch: the bytes of each step's workspace.
        update: the steps of the optimizer.
        accumulates: True if the gradients of two training steps are added before each step of the optimizer.
    """
    present = (tensor for tensor in network.tensors if tensor.kind in PRESENT)
    events: list[Event] = [(tensor.name, tensor.bytes) for tensor in present]
    for number, changes in enumerate(update):
        events += _list_step(lives, scratch, number)
        if accumulates:
            events += _list_step(lives, scratch, number, adds=True)
        events += changes
        events += [((number, life.name), FREE) for life in lives if life.added_at is not None]
    return events


def _list_step(
    lives: Sequence[Life], scratch: Sequence[int], number: int, *, adds: bool = False
) -> Iterator[Event]:
    """Yield the events of a training step, which keeps its gradients or adds them to earlier ones."""
    begins: list[list[Event]] = [[] for _ in scratch]
    ends: list[list[Event]] = [[] for _ in scratch]
    for life in lives:
        is_left = life.added_at is not None and not adds
        key = (number, life.name) if is_left else (number, life.name, adds)
        for start, stop in life.steps:
            if start < stop:
                begins[start].append((key, life.bytes))
                if not is_left:
                    ends[stop - 1 if life.added_at is None else life.added_at].append((key, FREE))
    for begun, size, ended in zip(begins, scratch, ends, strict=True):
        yield from begun
        yield "workspace", size
        yield "workspace", FREE
        yield from ended

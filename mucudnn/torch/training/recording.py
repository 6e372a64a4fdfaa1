"""`record_timeline`: the times and the memory of a real training step under a memory plan."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

from mucudnn.solver.memory.copies import Copy
from mucudnn.solver.memory.timeline import Timeline
from mucudnn.torch.training.apply import runtime_of


class Recording:
    """The events, copies and memory of a training step, from the device's clock and PyTorch's allocator.

    It begins when it is made. It resets PyTorch's peak statistics.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[Any] = []
        self._copies: list[tuple[int, Literal["out", "in"], Any, Any, int]] = []
        self._held: list[int] = []
        self._most: list[int] = []
        torch.cuda.reset_peak_memory_stats(device)
        self._mark()

    def add_event(self, kind: str, event: int) -> None:
        """Note that autograd saves or unpacks a tensor, which ends a step and begins the next."""
        self._most.append(torch.cuda.max_memory_allocated(self._device))
        torch.cuda.reset_peak_memory_stats(self._device)
        self._mark()

    def add_copy(self, order: int, direction: Literal["out", "in"], begin: Any, end: Any, size: int) -> None:
        """Note the copy of a piece between two events of its stream."""
        self._copies.append((order, direction, begin, end, size))

    def finish(self) -> Timeline:
        """Wait for the device, and return the timeline."""
        self._most.append(torch.cuda.max_memory_allocated(self._device))
        self._mark()
        torch.cuda.synchronize(self._device)
        first = self._events[0]
        at = [first.elapsed_time(event) for event in self._events]
        copies = [
            Copy(order, direction, first.elapsed_time(begin), first.elapsed_time(end), size)
            for order, direction, begin, end, size in self._copies
        ]
        return Timeline(
            starts_ms=tuple(at[:-1]),
            ends_ms=tuple(at[1:]),
            copies=tuple(sorted(copies, key=lambda copy: copy.start_ms)),
            memory=tuple(zip(at, self._held, strict=True)),
            step_bytes=tuple(self._most),
            peak=max(self._most),
            compute_ms=at[-1],
        )

    def _mark(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)
        self._held.append(torch.cuda.memory_allocated(self._device))


@contextmanager
def record_timeline(model: Any) -> Iterator[Timeline]:
    """Record one training step of a model with a plan in a context.

    The timeline is empty until the context ends. It has the type of the plan's `simulate()`, so both can be
    compared and drawn alike. Its steps end whenever autograd saves or unpacks a planned tensor. Times are
    measured by the device's events and include waits for copies, which a device does not distinguish from
    work, so compare `time_ms` with the plan's. Memory is all that PyTorch has allocated on the device. The
    recording resets PyTorch's peak statistics.

    Raises UsageError for a model without a plan.
    """
    lanes = runtime_of(model).lanes
    timeline = Timeline((), (), (), (), (), 0, 0.0)
    lanes.recording = recording = Recording(lanes.device)
    try:
        yield timeline
    finally:
        lanes.recording = None
        recorded = recording.finish()
        for name in Timeline.__slots__:
            object.__setattr__(timeline, name, getattr(recorded, name))

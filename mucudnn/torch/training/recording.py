"""`record_timeline`: what really happened in a training step under a memory plan."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from mucudnn.solver.memory.copies import Copy
from mucudnn.solver.memory.timeline import Timeline
from mucudnn.torch.training.apply import runtime_of


class Recording:
    """The events, copies and memory of a training step, from the device's clock and PyTorch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[Any] = []
        self._copies: list[tuple[int, str, Any, Any, int]] = []
        self._held: list[int] = []
        self._most: list[int] = []

    def begin(self) -> None:
        """Begin with the memory that is in use now."""
        torch.cuda.reset_peak_memory_stats(self._device)
        self._mark()

    def add_event(self, kind: str, event: int) -> None:
        """Note that autograd saves a tensor, or gets one back: the last step ends, and the next begins."""
        self._most.append(torch.cuda.max_memory_allocated(self._device))
        torch.cuda.reset_peak_memory_stats(self._device)
        self._mark()

    def add_copy(self, order: int, direction: str, begin: Any, end: Any, size: int) -> None:
        """Note a copy of a piece, between two events of its stream."""
        self._copies.append((order, direction, begin, end, size))

    def finish(self) -> Timeline:
        """Wait for the device. Return the timeline."""
        self._most.append(torch.cuda.max_memory_allocated(self._device))
        self._mark()
        torch.cuda.synchronize(self._device)
        first = self._events[0]
        at = [first.elapsed_time(event) for event in self._events]
        copies = [
            Copy(
                order,
                "out" if direction == "out" else "in",
                first.elapsed_time(b),
                first.elapsed_time(e),
                size,
            )
            for order, direction, b, e, size in self._copies
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
    """Return a context in which one training step of a model with a plan is recorded.

    The timeline is empty until the context ends. It is of the type that the plan's `simulate()` returns, so
    both can be compared and drawn alike. A step of it ends whenever autograd saves a planned tensor, or gets
    one back. Times are those of the device's events. Waits for copies are part of the steps, because a device
    does not tell them apart: compare `time_ms` with the plan's. Memory is all that PyTorch has allocated on
    the device. The recording resets PyTorch's peak statistics.

    Raises UsageError for a model without a plan.
    """
    lanes = runtime_of(model).lanes
    timeline = Timeline((), (), (), (), (), 0, 0.0)
    recording = Recording(lanes.device)
    recording.begin()
    lanes.recording = recording
    try:
        yield timeline
    finally:
        lanes.recording = None
        recorded = recording.finish()
        for name in Timeline.__slots__:
            object.__setattr__(timeline, name, getattr(recorded, name))

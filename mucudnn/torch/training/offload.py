"""Offload: the copies of saved tensors to the slab and back, on streams of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mucudnn.torch.tracing.saved import Storage, bytes_of
from mucudnn.torch.training.slab import Slab


class Lanes:
    """The two side streams of a device: one for copies out, one for copies in.

    The compute stream is the caller's current stream at each call. Memory that a copy uses is allocated and
    freed on the compute stream, and events order the streams.
    """

    def __init__(self, device: torch.device, piece: int) -> None:
        self.device = device
        self.piece = piece
        self.out = torch.cuda.Stream(device)
        self.into = torch.cuda.Stream(device)
        self.recording: Any = None  # the recording to which copies are reported

    def wait(self, waiting: Any, moment: Any) -> None:
        """Make a stream wait for an event. All waits of copies, and for copies, are made here."""
        waiting.wait_event(moment)

    def copy(self, to: Tensor, source: Tensor, direction: str, order: int) -> Any:
        """Copy bytes in pieces, after the compute stream's work so far. Return the event of the end."""
        lane = self.out if direction == "out" else self.into
        compute = torch.cuda.current_stream(self.device)
        self.wait(lane, compute.record_event())
        with torch.cuda.stream(lane):
            for begin in range(0, to.numel(), self.piece):
                part = slice(begin, begin + self.piece)
                with self._recorded(direction, order, to[part].numel()):
                    to[part].copy_(source[part], non_blocking=True)
            return lane.record_event()

    def wait_for(self, moment: Any) -> None:
        """Make the compute stream wait for an event."""
        self.wait(torch.cuda.current_stream(self.device), moment)

    @contextmanager
    def _recorded(self, direction: str, order: int, size: int) -> Iterator[None]:
        if self.recording is None:
            yield
            return
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        begin.record()
        yield
        end.record()
        self.recording.add_copy(order, direction, begin, end, size)


class HostCopy:
    """The copy of a saved storage in the slab, which exists until the graph that needs it is gone.

    `storage` is the device's memory, or None while the tensor is only on the host.
    """

    def __init__(self, lanes: Lanes, slab: Slab, order: int, place: Tensor, storage: Storage) -> None:
        self._lanes, self._slab, self._order, self._place = lanes, slab, order, place
        self.storage: Storage | None = storage
        self._left: Any = lanes.copy(place, bytes_of(storage), "out", order)
        self._back: Any = None  # the event of a copy in that the compute stream has not waited for
        self._compute: Any = None  # the stream that the memory of this copy in was allocated on

    def release(self) -> None:
        """Drop the device's memory. The compute stream, not the program, waits for the end of the copy."""
        if self.storage is None or self._back is not None:
            return
        if self._left is not None:
            self._lanes.wait_for(self._left)
            self._left = None
        self.storage = None

    def fetch(self) -> None:
        """Begin the copy in, unless the tensor is on the device. Raises torch.OutOfMemoryError."""
        if self.storage is None:
            back = torch.empty(self._place.numel(), dtype=torch.uint8, device=self._lanes.device)
            self._compute = torch.cuda.current_stream(self._lanes.device)
            self._back = self._lanes.copy(back, self._place, "in", self._order)
            self.storage = back.untyped_storage()

    def get(self) -> Storage:
        """Return the device's memory, which holds all bytes for later work on the compute stream."""
        self.fetch()
        if self._back is not None:
            self._lanes.wait_for(self._back)
            self._back = None
        assert self.storage is not None
        return self.storage

    def keep(self) -> Storage | None:
        """Give the place back and return the device's memory. Return None if only the host has the bytes."""
        if self.storage is None:
            return None
        storage = self.get()
        self.release()  # after this, no copy is under way
        self.close()
        return storage

    def close(self) -> None:
        """Give the place back, once no copy under way can write to the memory of the next owner."""
        try:
            if self._back is not None:
                self._lanes.wait(self._compute, self._back)
        finally:
            self._back = self.storage = None
            self._slab.give(self._order)

"""Simulated clocks for comparisons of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mucudnn._native import RunTime


@dataclass
class Reading:
    """A reading of a simulated clock."""

    now: float
    cpu: float

    def until(self, after: Reading, threads: int) -> RunTime:
        return RunTime((after.now - self.now) * 1e3, (after.cpu - self.cpu) * 1e3)


class Clock:
    """A clock that the steps of a test move on. Each step computes on one thread."""

    def __init__(self) -> None:
        self.now = self.cpu = 0.0

    def __call__(self, device: str) -> Any:
        return Reading(self.now, self.cpu)

    def compute(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds


class EvenClock(Clock):
    """A clock by which all steps take the same time."""

    def __call__(self, device: str) -> Any:
        self.compute(1.0)
        return super().__call__(device)


class BusyClock(Clock):
    """A clock of a machine on which another program runs in two of three steps of our choices."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def compute(self, seconds: float) -> None:
        super().compute(seconds)
        self.count += 1
        if seconds == 1.0 and self.count % 3:
            self.now += 1.0

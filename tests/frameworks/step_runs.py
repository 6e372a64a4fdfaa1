"""Simulated steps of a model for comparisons of steps, and a memory in the place of the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from needs_torch import torch
from step_clock import Clock

from mucudnn.costs.records import StepUses
from mucudnn.listener import Listener
from mucudnn.torch.choosing.step_comparison import StepComparison, choose
from mucudnn.torch.choosing.trials import Trial

X = torch.zeros(1)
CALL, OTHER = "a call", "another call"
CLEAR, LITTLE = 0.5, 0.1  # shares of a call's time that a choice saves


def steps(
    comparison: StepComparison,
    clock: Clock,
    count: int,
    ours: float,
    stock: float,
    mixture: float | None = None,
    call: str = CALL,
    gain: float | None = CLEAR,
) -> list[str]:
    """Run steps of two modules, each with the time of its way. Return the ways.

    With a time for `mixture` the choice for the second module is a little faster than PyTorch's own.
    """
    times = {"choices": ours, "stock": stock, "mixture": mixture}
    calls = {1: (call, gain), 2: (call, gain) if mixture is None else (f"little gain after {call}", LITTLE)}
    ways = []
    for _ in range(count):
        wanted = tuple(run_call(comparison, module, *calls[module]) for module in (1, 2))
        ways.append({(False, False): "choices", (True, True): "stock", (False, True): "mixture"}[wanted])
        time = times[ways[-1]]
        assert time is not None, "no mixture differs from the other ways"
        clock.compute(time)
    return ways


def run_call(comparison: StepComparison, module: int, call: str, gain: float | None = CLEAR) -> bool:
    """Call a module. Return whether PyTorch's own convolution runs for the sake of the step."""
    is_stock = comparison.follow(module, call, X)
    if not is_stock:
        comparison.note_choice(call, gain)
    return is_stock


class Memory:
    """A cache with the times of steps, by their calls."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, ...], dict[str, float]] = {}
        self.uses: dict[tuple[str, ...], StepUses] = {}

    def find_trial(self, calls: Sequence[Any]) -> Trial:
        return Trial(tuple(calls), choose, self.open)  # type: ignore[arg-type]

    @contextmanager
    def open(self, listener: Listener) -> Iterator[Memory]:
        yield self

    def step_times(self, *calls: str) -> dict[str, float]:
        return self.kept.get(calls, {})

    def add_step_times(self, *values: Any) -> None:
        *calls, times, checks = values
        self.kept[tuple(calls)] = times
        self.reset_uses(*calls, checks)

    def add_uses(self, *values: Any) -> StepUses:
        *calls, count = values
        uses, checks = self.uses.get(tuple(calls), StepUses(0, 0))
        self.uses[tuple(calls)] = StepUses(uses + count, checks)
        return self.uses[tuple(calls)]

    def reset_uses(self, *values: Any) -> None:
        *calls, checks = values
        self.uses[tuple(calls)] = StepUses(0, checks)


def compared(clock: Clock, memory: Memory | None = None) -> StepComparison:
    """Return a comparison with times in a memory, by default in an empty one."""
    return StepComparison((memory or Memory()).find_trial, clock)

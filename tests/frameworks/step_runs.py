"""Simulated steps of a model for comparisons of steps, and a memory in the place of the cache."""

from __future__ import annotations

from needs_torch import torch
from step_clock import Clock

from mucudnn.costs.records import StepUses
from mucudnn.torch.choosing.step_comparison import StepComparison

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
    """The times of steps by their calls, as a cache keeps them."""

    def __init__(self) -> None:
        self.kept: dict[tuple, dict[str, float]] = {}
        self.uses: dict[tuple, StepUses] = {}

    def find(self, calls):  # type: ignore[no-untyped-def]
        return self.kept.get(tuple(calls), {})

    def keep(self, calls, times, checks=0) -> None:  # type: ignore[no-untyped-def]
        self.kept[tuple(calls)] = times
        self.reset_uses(calls, checks)

    def add_uses(self, calls, count):  # type: ignore[no-untyped-def]
        uses, checks = self.uses.get(tuple(calls), StepUses(0, 0))
        self.uses[tuple(calls)] = StepUses(uses + count, checks)
        return self.uses[tuple(calls)]

    def reset_uses(self, calls, checks) -> None:  # type: ignore[no-untyped-def]
        self.uses[tuple(calls)] = StepUses(0, checks)

    def forget(self, calls) -> None:  # type: ignore[no-untyped-def]
        del self.kept[tuple(calls)]

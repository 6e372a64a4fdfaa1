"""A fast choice of the tensors that leave: the cheapest per byte first, until the training step fits.

An offloaded tensor costs nothing while all copies out take less time than the forward steps, and all copies
in less than the backward steps. Beyond that it costs the time of its copies. A recomputed tensor costs its
replay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from .timeline import required_bytes
from .training import Choice, TrainingStep


def choose_cheapest(
    work: TrainingStep, memory: int, *, offload: bool, recompute: bool, hidden: float
) -> tuple[Choice, ...] | None:
    """Return choices that fit the memory with the least workspaces, or None if these rules find none.

    `hidden` is the part of the work's time during which copies should cost nothing.
    """
    tensors, runs = work.tensors, work.runs(work.least_workspace)
    turn = min((tensor.first_backward_use for tensor in tensors), default=0)
    budget_out = hidden * math.fsum(run.time_ms for run in runs[:turn])
    budget_in = hidden * math.fsum(run.time_ms for run in runs[turn:])
    host = math.inf if work.host_memory is None else work.host_memory
    choices: list[Choice] = ["keep"] * len(tensors)
    for _ in tensors:
        required = required_bytes(runs, tensors, choices, work.link)
        worst = max(range(len(required)), key=required.__getitem__, default=0)
        if not required or required[worst] <= memory:
            return tuple(choices)
        best: tuple[float, int, Choice] | None = None
        for i in _idle_at(work, choices, worst):
            tensor = tensors[i]
            ways: list[tuple[float, Choice]] = []
            if recompute and tensor.replay and _may_replay(work, choices, i):
                ways.append((tensor.replay.time_ms, "recompute"))
            if offload and tensor.bytes <= host:
                out, back = work.link.out_ms(tensor.bytes), work.link.in_ms(tensor.bytes)
                exposed = max(out - budget_out, 0.0) + max(back - budget_in, 0.0)
                ways.append((exposed, "offload"))
            for cost, choice in ways:
                rate = (cost / max(tensor.bytes, 1), -tensor.bytes)
                if best is None or rate < (best[0], -tensors[best[1]].bytes):
                    best = rate[0], i, choice
        if best is None:
            return None
        _, i, choices[i] = best
        if choices[i] == "offload":
            budget_out = max(budget_out - work.link.out_ms(tensors[i].bytes), 0.0)
            budget_in = max(budget_in - work.link.in_ms(tensors[i].bytes), 0.0)
            host -= tensors[i].bytes
    return None


def _idle_at(work: TrainingStep, choices: list[Choice], step: int) -> Iterator[int]:
    """Yield the kept tensors that are not in use at a step."""
    for i, (tensor, choice) in enumerate(zip(work.tensors, choices, strict=True)):
        if choice == "keep" and tensor.last_forward_use < step < tensor.first_backward_use:
            yield i


def _may_replay(work: TrainingStep, choices: list[Choice], i: int) -> bool:
    """Return whether a tensor can be computed again, because neither its sources nor its results are."""
    replay = work.tensors[i].replay
    assert replay is not None
    if any(choices[source] == "recompute" for source in replay.sources):
        return False
    return not any(
        choice == "recompute" and other.replay and i in other.replay.sources
        for other, choice in zip(work.tensors, choices, strict=True)
    )

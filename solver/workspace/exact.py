"""Workspace division by dynamic programming over Pareto fronts, in integer bytes.

The solver adds one kernel after another. A state is the workspace and time of the choices so far. It is
dropped if another state dominates it, or if it could not improve on the best known answer even if the options
of the remaining kernels could be mixed. Each state also offers an answer, which completes it with whole
segments of that relaxation (Dyer, Kayal and Walker 1984; Pisinger 1995, for the multiple-choice knapsack).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from .choice import Answer, Options
from .configuration import TIE
from .relaxation import Floats, Ints, Segments

MAX_STATES = 2**22  # the limit for all kernels together, a few hundred MiB


def solve(options: Sequence[Options], capacity: int, gap: float, time_limit: float) -> Answer:
    """Choose one option of each kernel, whose workspaces together never exceed the capacity.

    There is always a choice. If time or states run out, the answer's bound limits its distance from the
    optimum.
    """
    stop = time.monotonic() + time_limit
    gap = max(gap, TIE)
    segments = Segments(options)
    choice = segments.fill(capacity)
    best = sum(float(kernel.time[option]) for kernel, option in zip(options, choice, strict=True))
    least = bound = float(segments.after(0).bound(np.array([capacity]))[0])

    workspace, elapsed = np.zeros(1, dtype=np.int64), np.zeros(1)
    steps: list[tuple[Ints, Ints]] = []  # for each kernel, the parent state and the option of every state
    for done, kernel in enumerate(options, start=1):
        rest = segments.after(done)
        states = sum(len(step[0]) for step in steps)
        grown: list[tuple[Ints, Floats, Ints, Ints]] = []
        for option, (more_workspace, more_time) in enumerate(zip(kernel.workspace, kernel.time, strict=True)):
            if time.monotonic() > stop or states > MAX_STATES:
                return Answer(choice, bound)
            fits = int(np.searchsorted(workspace, capacity - more_workspace, side="right"))
            w, t = workspace[:fits] + more_workspace, elapsed[:fits] + more_time
            parent = np.flatnonzero(t + rest.bound(capacity - w) < best * (1 - gap))
            grown.append((w[parent], t[parent], parent, np.full(len(parent), option)))
            states += len(parent)
        workspace, elapsed, parents, taken = (np.concatenate(column) for column in zip(*grown, strict=True))
        front = _find_pareto(workspace, elapsed)
        workspace, elapsed = workspace[front], elapsed[front]
        steps.append((parents[front], taken[front]))
        if not len(front):
            break
        answers = elapsed + rest.whole(capacity - workspace)
        state = int(answers.argmin())
        if answers[state] < best:
            choice = _trace(steps, state) + rest.choice(capacity - int(workspace[state]))
            best = float(answers[state])
        bound = max(least, min(best * (1 - gap), float((elapsed + rest.bound(capacity - workspace)).min())))
    return Answer(choice, max(least, best * (1 - gap)))


def _find_pareto(workspace: Ints, elapsed: Floats) -> Ints:
    """Return the indices of the Pareto-optimal states, workspace ascending; of equal states one stays."""
    order = np.lexsort((elapsed, workspace))
    sorted_time = elapsed[order]
    faster = np.ones(len(order), dtype=bool)
    faster[1:] = sorted_time[1:] < np.minimum.accumulate(sorted_time)[:-1]
    return order[faster]


def _trace(steps: Sequence[tuple[Ints, Ints]], state: int) -> list[int]:
    """Return the options that led to a state of the last step, in the order of the kernels."""
    choice: list[int] = []
    for parents, taken in reversed(steps):
        choice.append(int(taken[state]))
        state = int(parents[state])
    return choice[::-1]

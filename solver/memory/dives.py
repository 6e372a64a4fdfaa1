"""Decisions from the fluid program: the fractions of its solution are rounded, some at a time.

After each rounding the program is solved again, so that the other variables adapt. Programs with less memory,
slower links or slower replays lead to other decisions, because the program expects more of the copies than a
device does.
"""

from __future__ import annotations

import math

import numpy as np

from .evaluation import KEEP, Codes
from .fluid_program import FluidProgram

ROUNDS = 14
PART = 0.25  # a round rounds up this part of the fractions, the largest first
TINY = 1e-6


def dive(program: FluidProgram) -> Codes | None:
    """Return choices from a program that has been solved, or None if rounding leads to none."""
    fixed: set[tuple[int, int]] = set()
    part = PART
    for _ in range(ROUNDS):
        free = [(value, i, way) for i, way, value in program.values() if (i, way) not in fixed]
        fractions = sorted(
            ((value, i, way) for value, i, way in free if TINY < value < 1 - TINY),
            key=lambda each: (-each[0], each[2], each[1]),
        )
        if not fractions:
            break
        most = max(1, int(part * len(fractions)), sum(value > 0.9 for value, _, _ in fractions))
        rounded = [each for each in fractions[:most] if each[0] >= 0.5] or fractions[:1]
        whole = [each for each in free if each[0] >= 1 - TINY]
        for _, i, way in (*whole, *rounded):
            program.fix(i, way, 1.0, 1.0)
            fixed.add((i, way))
        if math.isfinite(program.solve_again()):
            continue
        for _, i, way in rounded:  # too many at once, so fewer of them
            program.fix(i, way, 0.0, 1.0)
            fixed.discard((i, way))
        if len(rounded) > 1:
            part = 0.0
        else:
            _, i, way = rounded[0]
            program.fix(i, way, 0.0, 0.0)
            fixed.add((i, way))
        if not math.isfinite(program.solve_again()):
            return None
    codes = np.full(program.tensors, KEEP, dtype=np.int8)
    for i, way, value in program.values():
        if value > 0.5:
            codes[i] = way
    return codes

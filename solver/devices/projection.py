"""The time of a whole training run by data parallelism alone, and with several devices for each replica.

With data parallelism on N devices, a step takes t_N and the training takes E_N epochs, more of which a larger
mini-batch may need. If M devices run a step of one replica SU^M times as fast as one device, N replicas of M
devices train SU^M times as fast as N devices.

Source: Pal et al., "Optimizing Multi-GPU Parallelization Strategies for Deep Learning Training", IEEE Micro
2019, equations 3 to 6.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DataParallel:
    """A training by data parallelism on a number of devices.

    Args:
        devices: the number of devices.
        step_ms: milliseconds of a training step, with the same samples on each device.
        epochs: the epochs until the model is good enough.

    Raises:
        ValueError: a figure is not above 0 or not finite.
    """

    devices: int
    step_ms: float
    epochs: float

    def __post_init__(self) -> None:
        for name in ("devices", "step_ms", "epochs"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} is {value}, must be above 0 and finite")


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to train on `replicas` times `devices_each` devices, and its speedup over one device.

    Attributes:
        replicas: the replicas, which divide the mini-batch.
        devices_each: the devices of a replica; 1 for data parallelism alone.
        speedup: the training's speed relative to one device.
    """

    replicas: int
    devices_each: int
    speedup: float

    @property
    def devices(self) -> int:
        """The number of all devices."""
        return self.replicas * self.devices_each


def project(
    table: Sequence[DataParallel], model_speedups: Mapping[int, float]
) -> list[tuple[Strategy | None, Strategy | None]]:
    """Return, for each number of devices, data parallelism alone and the best hybrid strategy.

    Nothing is interpolated: the first of a pair is None if the table lacks the number of devices, the second
    if it lacks the number of replicas of every hybrid.

    Args:
        table: the trainings by data parallelism; one of them on one device.
        model_speedups: SU^M, how much faster M devices run a step of one replica than one device does, by M.

    Raises:
        ValueError: the table has no row for one device or two rows for one number, M is less than 2, or a
            speedup is not above 0.
    """
    rows = {row.devices: row for row in table}
    if len(rows) < len(table):
        raise ValueError("the table has two rows for one number of devices")
    if 1 not in rows:
        raise ValueError("the table has no row for 1 device, to which all speeds refer")
    for devices, speedup in model_speedups.items():
        if devices < 2:
            raise ValueError(f"a speedup is given for {devices} devices of a replica, must be at least 2")
        if not 0 < speedup < math.inf:
            raise ValueError(f"the speedup of {devices} devices is {speedup}, must be above 0 and finite")
    work = rows[1].step_ms * rows[1].epochs
    alone = {n: Strategy(n, 1, n * work / (row.step_ms * row.epochs)) for n, row in rows.items()}
    hybrids: dict[int, Strategy] = {}
    for (n, plain), (m, speedup) in ((a, b) for a in alone.items() for b in model_speedups.items()):
        hybrid = Strategy(n, m, plain.speedup * speedup)
        if n * m not in hybrids or hybrid.speedup > hybrids[n * m].speedup:
            hybrids[n * m] = hybrid
    return [(alone.get(n), hybrids.get(n)) for n in sorted(alone.keys() | hybrids.keys())]

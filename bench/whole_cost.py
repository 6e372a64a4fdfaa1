"""Estimates of the time that a case of the whole-network table takes, from what this machine has measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from bench.record import Record
from bench.whole_rows import NETWORKS, SPEEDUP, Case, cases, parts_of, sample_shape

# Stock PyTorch's seconds of a training step, N=16, two threads, on one machine. Others are a factor away.
_STOCK_S = {
    "resnet18": 0.82, "squeezenet1_1": 0.38, "mobilenet_v2": 0.76, "vgg11": 3.5, "convnext_tiny": 2.2,
    "googlenet": 1.05, "resnext50_32x4d": 2.7, "densenet121": 2.1, "inception_v3": 3.4, "r3d_18": 3.3,
    "maxvit_t": 6.3, "deeplabv3_mobilenet_v3_large": 2.0, "unet3d": 0.4, "efficientnet_b0": 1.3,
    "shufflenet_v2_x1_0": 0.6,
}  # fmt: skip
_ONE_THREAD, _INFERENCE = 1.8, 0.3  # times of a step, relative to two threads and to training
_START_S = 7.0  # starting the process and building the model
_FORK_S = 1.5  # a fork for the times, and one for each peak
_STOCK_STEPS = 3 + 2  # before the rounds, and for the peak
# A way's steps in stock steps: the first one, those of the verdict, and three for the peak.
_STEPS_OF_WAY = 4 + 20 + 3
_ROUNDS = 3


class Estimates:
    """The seconds that cases will take on the machine that measured `records`."""

    def __init__(self, records: Iterable[Record]) -> None:
        found: dict[str, list[float]] = {}
        self._taken: dict[tuple[str, int], float] = {}  # (case, number of its ways) -> seconds
        for record in records:
            if record.metric == SPEEDUP and record.value is not None:
                network, setting, _ = parts_of(record.case)
                case = f"{network}, {setting}"
                found.setdefault(case, []).append(record.details["stock_ms"] / 1e3)
                if "seconds" in record.details:
                    self._taken[case, record.details["together"]] = record.details["seconds"]
        self._known = {case: statistics.median(times) for case, times in found.items()}
        ratios: dict[str, list[float]] = {name: [] for name in NETWORKS}
        for one in cases():
            if str(one) in self._known:
                ratios[one.network].append(self._known[str(one)] / _usual_s(one))
        everywhere = [ratio for several in ratios.values() for ratio in several] or [1.0]
        self._factors = {name: statistics.median(several or everywhere) for name, several in ratios.items()}

    def stock_s(self, case: Case) -> float:
        """Return the seconds of a stock step: measured, or estimated from other cases."""
        return self._known.get(str(case)) or _usual_s(case) * self._factors[case.network]

    def seconds(self, case: Case, ways: int, rounds_s: float) -> float:
        """Return the seconds of a case with so many ways, whose rounds may take `rounds_s`.

        If the machine has measured it, it takes as long again.
        """
        if taken := self._taken.get((str(case), ways)):
            return taken
        step = self.stock_s(case)
        steps = _STOCK_STEPS + ways * _STEPS_OF_WAY
        rounds = math.ceil(max(_ROUNDS, rounds_s / (step * (1 + ways))))
        return _START_S + _FORK_S * (2 + ways) + step * (steps + rounds * (1 + ways))


def _usual_s(case: Case) -> float:
    samples = (case.batch + 1) / 17
    share = math.prod(sample_shape(case.network, case.batch)) / math.prod(NETWORKS[case.network][1])
    threads = _ONE_THREAD if case.threads == 1 else 1.0
    return _STOCK_S[case.network] * samples * share * threads * (_INFERENCE if case.inference else 1.0)

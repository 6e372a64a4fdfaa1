"""Modelled over recorded times: how far the models of seven GPUs are off, with and without calibration.

The layers are drawn into two halves, those of each filter and stride apart. An algorithm's factor is the
median of recorded over modelled times in the first half. `mucudnn/measuring/modelled_devices.json` has those
that lower the error in the second half, whose figures these are. Mini-batches below 32 do not count, because
launches and idle multiprocessors, which no model has, take most of their time.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace

from bench.lib.record import Record
from mucudnn._native import parse_descriptor
from mucudnn.costs.schema import Row
from mucudnn.measuring.modelled_device import DEVICES, modelled_algorithms
from mucudnn.problems.kernels import Kernel

SEED, LEAST_BATCH = 0, 32
GPUS = {f"recorded {device.recorded_as}": device for device in DEVICES.values() if device.recorded_as}
NAMES = {("f16", "IMPLICIT_PRECOMP_GEMM"): "TENSOR_CORES"}  # the model's names, where they differ
FASTEST = ("fastest", "fastest, calibrated")
COLUMNS = ("times", "lower quartile", "median", "upper quartile", "error", "factor", "error with it")
HEAD = ("GPU", "form", "algorithm", *COLUMNS)
Layer = tuple[tuple[int, ...], ...]


def compare_models(rows: Iterable[Row]) -> Iterator[Record]:
    """Yield the figures of each algorithm, and those of the fastest one for each convolution."""
    times: dict[tuple[str, str, Kernel], dict[str, float]] = defaultdict(dict)
    for _, row in rows:
        problem = parse_descriptor(row["problem"])[0]
        if row["device"] in GPUS and row["micro_batch"] >= LEAST_BATCH and problem.groups == 1:
            kernel = Kernel(problem, row["pass"]).at(row["micro_batch"])
            algorithm: str = row["algorithm"]
            name = NAMES.get((problem.data_type, algorithm), algorithm)
            times[row["device"], row["library"], kernel].setdefault(name, row["time_ms"])  # the fastest first
    first_half = draw_half({layer_of(kernel) for _, _, kernel in times})
    halves: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for (gpu, _, kernel), recorded in times.items():
        form = f"{GPUS[gpu].recorded_as}; {kernel.problem.data_type} {kernel.problem.layout}"
        for name, ratio in find_ratios(gpu, kernel, recorded).items():
            halves[f"{form}; {name}"][layer_of(kernel) not in first_half].append(ratio)
    for case, (first, second) in sorted(halves.items()):
        if first and second:
            figures = [len(second), *statistics.quantiles(second, method="inclusive"), error(second)]
            if not case.endswith(FASTEST):
                factor = round(1 / statistics.median(first), 3)
                figures += [factor, error(second, factor)]
            details = dict(zip(COLUMNS, figures, strict=False))
            yield Record("models", case, "error", details["error"], "", details)


def find_ratios(gpu: str, kernel: Kernel, recorded: dict[str, float]) -> dict[str, float]:
    """Return the modelled over the recorded time of each algorithm that both know, and of the fastest."""
    plain, calibrated = (
        {part.algorithm: part.time_ms for part in modelled_algorithms(device, kernel, kernel.mini_batch)}
        for device in (replace(GPUS[gpu], recorded={}), GPUS[gpu])
    )
    least = min(recorded.values())
    fastest = (min(times.values()) / least for times in (plain, calibrated))
    ratios = {name: plain[name] / ms for name, ms in recorded.items() if name in plain}
    return ratios | dict(zip(FASTEST, fastest, strict=True))


def layer_of(kernel: Kernel) -> Layer:
    """Return what tells layers apart: all but the mini-batch, the data type and the layout."""
    p = kernel.problem
    return p.kernel, p.stride, p.padding, p.input, (p.in_channels, p.out_channels)


def draw_half(layers: Iterable[Layer]) -> set[Layer]:
    """Return every second layer of each filter and stride, in an order drawn by SEED."""
    drawn = sorted(layers)
    random.Random(SEED).shuffle(drawn)
    return {*sorted(drawn, key=lambda layer: layer[:2])[::2]}


def error(ratios: Iterable[float], factor: float = 1.0) -> float:
    """Return the median error of ratios as a factor, at least 1."""
    return math.exp(statistics.median(abs(math.log(factor * ratio)) for ratio in ratios))

"""The algorithms of the host engine that are too slow to measure, by the measurements of similar kernels.

The model of `modelled_costs` predicts a time, and the measurements of similar kernels on the same machine
correct it: another mini-batch, another image size, another layer or network. Where none is similar, the model
alone decides, but only about algorithms that are far behind.
"""

import math
from collections.abc import Container, Iterable, Sequence

from mucudnn.costs.records import STOCK, Measurement
from mucudnn.costs.similar import find_similar
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.modelled_costs import is_modelled, modelled_ms
from mucudnn.measuring.runners import Task, Worklist
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import is_tiled

# An algorithm is not measured if another one is predicted to be this many times as fast, by similar kernels
# or by the model alone. No choice got slower by it in replays of recorded times
# (bench/results/measured_once.md).
_FAR, _FAR_BY_MODEL = 1.5, 2.5
_MOST_ROWS = 64  # the most similar measurements
# The weight of the uncorrected model, if a measurement of an equal kernel has the weight 1; and the weight of
# all similar measurements from which on they decide.
_MODEL_WEIGHT, _ENOUGH_WEIGHT = 0.05, 0.3


class _Prediction:
    """The predicted ms of a kernel's candidates, corrected by similar kernels of the same machine."""

    def __init__(self, kernel: Kernel, known: Iterable[tuple[Kernel, Measurement]]) -> None:
        self._kernel = kernel
        self._known: dict[str, list[tuple[tuple[float, ...], float]]] = {}  # (features, log of the factor)
        for other, row in known:
            size, algorithm = row.micro_batch, row.algorithm
            if row.time_ms and is_modelled(other, algorithm):
                ms = modelled_ms(other, size, algorithm, row.workspace)
                place = _features(other, size), math.log(row.time_ms / ms)
                self._known.setdefault(algorithm, []).append(place)

    def sample_ms(self, task: Task) -> tuple[float, float]:
        """Return the ms for one sample, and the weight of the similar measurements behind it."""
        here = _features(self._kernel, task.micro_batch)
        weights = [
            (math.exp(-sum((a - b) ** 2 for a, b in zip(here, there, strict=True)) / 2), factor)
            for there, factor in self._known.get(task.algorithm, ())
        ]
        weight = sum(own for own, _ in weights)
        factor = math.exp(sum(own * factor for own, factor in weights) / (weight + _MODEL_WEIGHT))
        ms = modelled_ms(self._kernel, task.micro_batch, task.algorithm, task.workspace)
        return factor * ms / task.micro_batch, weight


def find_unlikely(bench: Bench, kernel: Kernel, tasks: Sequence[Task], limit: int | None) -> dict[str, int]:
    """Return the algorithms whose tasks need not be done, with the workspace of a far faster algorithm.

    They are slower at all sizes within the `limit`, as long as that much workspace is allowed. An algorithm
    with a measurement of this kernel is never unlikely.
    """
    if bench.engine.kind != "host":
        return {}
    modelled = [
        task
        for task in tasks
        if is_modelled(kernel, task.algorithm) and (limit is None or task.workspace <= limit)
    ]
    if len({task.algorithm for task in modelled}) < 2:
        return {}
    begun = {row.algorithm for row in bench.cache.measurements(bench.machine, kernel) if row.time_ms}
    prediction = _Prediction(kernel, find_similar(bench.cache, bench.machine, kernel, _MOST_ROWS))
    best: dict[str, tuple[float, float, int]] = {}
    for task in modelled:
        ms, weight = prediction.sample_ms(task)
        best[task.algorithm] = min((ms, weight, task.workspace), best.get(task.algorithm, (math.inf, 0.0, 0)))
    first_ms, first_weight, workspace = min(best.values())
    problem = kernel.problem
    is_fitted = (problem.data_type, problem.layout, problem.dims) == ("f32", "nchw", 2)
    unlikely = {}
    for algorithm, (ms, weight, _) in best.items():
        is_known = min(weight, first_weight) >= _ENOUGH_WEIGHT
        far = _FAR if is_known else _FAR_BY_MODEL if is_fitted else math.inf
        if algorithm not in begun and ms > far * first_ms:
            unlikely[algorithm] = workspace
    return unlikely


def drop_unlikely(
    unlikely: Container[str],
    kernel: Kernel,
    tasks: list[Task],
    rows: Iterable[Measurement],
    missing: Worklist,
) -> list[Task]:
    """Return the tasks without those of unlikely algorithms.

    If the race compares with an undivided algorithm, and only unlikely ones fit the smallest limit undivided,
    their tasks stay: slow as they are, one of them is what a program without divisions runs.
    """
    likely = [task for task in tasks if task.algorithm not in unlikely]
    if not missing.undivided or len(likely) == len(tasks):
        return likely

    def runs_whole(item: Task | Measurement) -> bool:
        limit = missing.limits[0]
        is_whole = item.micro_batch == kernel.mini_batch and not is_tiled(item.algorithm)
        return is_whole and item.algorithm != STOCK and (limit is None or item.workspace <= limit)

    if any(map(runs_whole, likely)) or any(runs_whole(row) for row in rows if row.time_ms):
        return likely
    return [task for task in tasks if task.algorithm not in unlikely or runs_whole(task)]


def _features(kernel: Kernel, size: int) -> tuple[float, ...]:
    """Return a place for a kernel: the closer two kernels are, the more alike are the model's errors."""
    problem = kernel.problem
    return (
        math.log2(problem.in_channels / problem.groups) / 2,
        math.log2(problem.out_channels) / 2,
        math.log2(math.prod(problem.output)) / 2,
        2 * math.log2(math.prod(problem.stride)),
        math.log2(size) / 4,
    )

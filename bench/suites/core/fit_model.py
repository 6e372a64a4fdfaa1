"""Fit the factors of `mucudnn.measuring.host_model` to recorded times, and print them with what they cost.

usage: python -m bench.suites.core.fit_model
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from bench.lib.record import RESULTS
from mucudnn._native import parse_descriptor
from mucudnn.measuring.host_model import Work, family, modelled_ms, work_of
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import is_tiled

Row = tuple[int, str, int, float]  # micro-batch size, algorithm, workspace, milliseconds


def main() -> None:
    """Print the factors of each family, and by how much modelled choices are slower than the best."""
    work, times, losses = defaultdict(list), defaultdict(list), defaultdict(list)
    for kernel, rows in _recorded():
        for size, algorithm, workspace, ms in rows:
            work[family(kernel, algorithm)].append(work_of(kernel, size, workspace))
            times[family(kernel, algorithm)].append(ms)
        best = min(ms / size for size, _, _, ms in rows)
        chosen = min(rows, key=lambda row: modelled_ms(kernel, *row[:3]) / row[0])
        losses[kernel.pass_].append(chosen[3] / chosen[0] / best)
    for name in sorted(work):
        factors = _fit(np.array(work[name]), np.array(times[name]))
        print(f"    {name!r}: Work({', '.join(f'{factor:.2g}' for factor in factors)}),")
    for pass_, own in losses.items():
        mean, worst = statistics.geometric_mean(own), max(own)
        print(
            f"{pass_}: modelled choices take {mean:.3f} times as long as the best ones, at most {worst:.2f}"
        )


def _recorded() -> Iterator[tuple[Kernel, list[Row]]]:
    for path in sorted((RESULTS / "costs").glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                rows = [
                    (size, algorithm, workspace, statistics.median_low(sorted(times)[:3]))
                    for size, algorithm, workspace, times in line["rows"]
                    if not algorithm.startswith("STOCK") and not is_tiled(algorithm)
                ]
                yield Kernel(parse_descriptor(line["problem"])[0], line["pass"]), rows


def _fit(work: npt.NDArray[np.float64], times: npt.NDArray[np.float64]) -> Sequence[float]:
    """Return the factors with the least relative errors, none of them negative."""
    relative = work / times[:, None]
    used = list(range(work.shape[1]))
    while True:
        solved, *_ = np.linalg.lstsq(relative[:, used], np.ones(len(times)), rcond=None)
        if (solved > -1e-9).all():
            factors = np.zeros(len(Work._fields))
            factors[used] = solved.round(6)
            return [float(factor) for factor in factors]
        used.remove(used[int(solved.argmin())])


if __name__ == "__main__":
    main()

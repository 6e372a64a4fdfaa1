"""The measurements in bench/results stay readable: a new cache takes them, and a replay decides from them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from command_line import Capture, json_of

from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import MEASUREMENT
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import replay
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import micro_batch_sizes

RESULTS = Path(__file__).parents[2] / "bench" / "results"
RECORDS = sorted(RESULTS.glob("**/measurements.jsonl.gz"))
MiB = 2**20


def test_there_is_a_record() -> None:
    assert RECORDS


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: path.parent.name)
def test_a_new_cache_takes_a_record_and_replays_its_kernels(
    record: Path, cache_path: Path, capsys: Capture
) -> None:
    imported = json_of(capsys, ["cache", "import", str(record), "--json"])
    assert imported["rows"] == len(gzip.decompress(record.read_bytes()).splitlines()) - 1
    kernels = largest_measured_kernels(cache_path)
    assert kernels
    with Cache.read_only(cache_path) as cache:
        result = replay(cache, kernels, "power_of_two", Limits(64 * MiB))
    assert result.new_measurements == 0
    assert all(decision.divided.time_ms > 0 for decision in result.decisions)


def largest_measured_kernels(path: Path) -> list[Kernel]:
    """Return each kernel, at the largest mini-batch of which all sizes are measured."""
    sizes: dict[tuple[str, str], set[int]] = {}
    with Cache.read_only(path) as cache:
        for row in cache.select(MEASUREMENT):
            if row["time_ms"] is not None and row["workspace"] <= 64 * MiB:
                sizes.setdefault((row["pass"], row["problem"]), set()).add(row["micro_batch"])
    kernels = []
    for (pass_, key), measured in sizes.items():
        whole = [n for n in measured if measured.issuperset(micro_batch_sizes("power_of_two", n))]
        if whole:
            kernels.append(Kernel(parse_descriptor(key)[0].replace(mini_batch=max(whole)), pass_))
    return kernels

"""Divided kernels have the errors of undivided ones."""

from pathlib import Path

import pytest

from bench.suites.gpu.checks import SLICES, compare_errors
from mucudnn._native import Engine, host_library
from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Exhaustive
from mucudnn.problems.kernels import PASSES
from mucudnn.problems.sources import Flags, read_kernels

KERNEL = "mb8_ic16ih14_oc16_kh3_ph1"


@pytest.mark.parametrize("data_type", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("pass_", PASSES)
def test_slices_at_most_double_the_error(data_type: str, pass_: str, tmp_path: Path) -> None:
    (kernel,) = read_kernels(KERNEL, Flags(dtype=data_type), [pass_])
    with Cache.open(tmp_path / "cache.sqlite") as cache:
        bench = Bench(Engine(host_library(), threads=1), cache, Listener(), Exhaustive())
        records = list(compare_errors(bench, kernel, "a kernel"))
    ratios = [record.value for record in records if record.value is not None]
    assert len(ratios) + sum("why" in record.details for record in records) == len(SLICES)
    assert all(ratio <= 2 for ratio in ratios)

"""A choice without a clock keeps within its limit, with all that its slices need, and keeps its promise."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mucudnn._native import Engine, host_library, parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Race
from mucudnn.plans.fixed import fixed_choice, invariant_choice
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import is_tiled


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Cache.in_memory(Path("none")) as cache:
        yield Bench(Engine(host_library()), cache, Listener(), Race())


def test_the_sum_of_many_slices_counts_as_workspace(bench: Bench) -> None:
    kernel = Kernel(parse_descriptor("bf16:mb64_ic16ih28_oc16_kh3_ph1")[0], "backward_filter")

    def workspace(limit: int) -> int:
        chosen = fixed_choice(bench, kernel, "power_of_two", limit)
        assert bench.engine.prepare(kernel, chosen.slices).workspace == chosen.workspace
        return chosen.workspace

    sizes = [workspace(2**20)]
    while sizes[-1] > 0:
        sizes.append(workspace(sizes[-1] - 1))
        assert sizes[-1] < sizes[-2]


@pytest.mark.parametrize("limit", [2**20, 2**23, None])
def test_a_batch_invariant_choice_has_no_tiles(limit: int | None, bench: Bench) -> None:
    kernel = Kernel(parse_descriptor("ic64ih256_oc64_kh3_ph1")[0], "forward")
    assert any(is_tiled(candidate.algorithm) for candidate in bench.engine.enumerate(kernel))
    assert not any(is_tiled(part.algorithm) for part in invariant_choice(bench, kernel, limit).parts)

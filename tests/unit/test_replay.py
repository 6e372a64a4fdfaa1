"""A replay decides from a cache alone."""

from pathlib import Path

import pytest
from fake_engine import FakeEngine
from optimizer_cases import KERNELS, LIMIT, run

from mucudnn.costs.cache import Cache
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.plans.optimizer import replay
from mucudnn.plans.result import to_json
from mucudnn.problems.kernels import Kernel


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


def test_a_replay_decides_the_same_without_an_engine(path: Path) -> None:
    decided = to_json(run(path, FakeEngine(), run=False))
    with Cache.read_only(path) as cache:
        replayed = to_json(replay(cache, KERNELS, "power_of_two", LIMIT))
    assert replayed == {**decided, "new_measurements": 0}


def test_a_replay_names_what_is_missing(path: Path) -> None:
    run(path, FakeEngine(), kernels=KERNELS[:1], policy="undivided")
    with Cache.read_only(path) as cache:
        with pytest.raises(MucudnnError, match="no measurements of second backward_filter"):
            replay(cache, KERNELS, "undivided", LIMIT)
        with pytest.raises(MucudnnError, match="first forward: nothing was measured at micro-batch 1, 2, 4"):
            replay(cache, KERNELS[:1], "power_of_two", LIMIT)


def test_a_replay_names_the_first_of_many_that_are_missing(path: Path) -> None:
    run(path, FakeEngine(), kernels=KERNELS[:1])
    passes = ("forward", "backward_data", "backward_filter")
    problems = {"a": KERNELS[1].problem, "b": KERNELS[1].problem.replace(mini_batch=4)}
    kernels = [Kernel(problem, p, name) for name, problem in problems.items() for p in passes]
    with (
        Cache.read_only(path) as cache,
        pytest.raises(MucudnnError, match="of a forward, a backward_data, a backward_filter and 3 more on"),
    ):
        replay(cache, kernels, "power_of_two", LIMIT)


def test_a_replay_of_several_machines_asks_which(path: Path) -> None:
    run(path, FakeEngine())
    run(path, FakeEngine(threads=2))
    with Cache.read_only(path) as cache:
        with pytest.raises(UsageError, match=r"1 thread; .* 2 threads"):
            replay(cache, KERNELS, "power_of_two", LIMIT)
        assert replay(cache, KERNELS, "power_of_two", LIMIT, machine="2 threads").machine.threads == 2

"""On the CPU convolutions use PyTorch's number of threads, unless the user sets another."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from needs_torch import mt, torch

import mucudnn
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import FRAMEWORK
from mucudnn.torch.operators import passes

X, W = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)


@pytest.fixture(autouse=True)
def _default_threads(cache_path: Path) -> Iterator[None]:
    passes._wanted_threads.cache_clear()
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
    passes._wanted_threads.cache_clear()


def measured_on(path: Path) -> set[int]:
    """Return the thread counts of all machines with measurements in the cache."""
    with Cache.read_only(path) as cache:
        return {machine.threads for machine in cache.machines()}


@pytest.mark.parametrize("threads", [1, 3])
def test_the_machine_of_a_decision_has_pytorchs_number_of_threads(threads: int, cache_path: Path) -> None:
    torch.set_num_threads(threads)
    w = W.clone().requires_grad_()
    mt.conv2d(X, w, padding=1).sum().backward()
    assert measured_on(cache_path) == {threads}


def test_a_number_that_changes_between_two_calls_is_followed(cache_path: Path) -> None:
    model, results = mt.convert(torch.nn.Conv2d(3, 4, 3)), []
    for threads in (1, 3, 1):
        torch.set_num_threads(threads)
        results.append(model(X))
    assert measured_on(cache_path) == {1, 3}
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


def test_mucudnn_threads_takes_precedence(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    monkeypatch.setenv("MUCUDNN_THREADS", "2")
    mt.conv2d(X, W)
    with Cache.read_only(cache_path) as cache:  # PyTorch's own convolution follows PyTorch's number
        machines = {(machine.engine, machine.threads) for machine in cache.machines()}
    assert machines == {("host", 2), (FRAMEWORK, 3)}


def test_the_array_functions_ask_mucudnn_threads_alone(cache_path: Path) -> None:
    torch.set_num_threads(3)
    mucudnn.convolution_forward(X, W)
    assert measured_on(cache_path) == {1}


def test_a_plan_is_made_for_that_number() -> None:
    torch.set_num_threads(3)
    assert mt.plan(torch.nn.Conv2d(3, 4, 3), X).header["threads"] == "3"

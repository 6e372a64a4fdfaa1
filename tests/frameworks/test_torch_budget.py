"""A budget in seconds also ends the comparisons of single calls and of compiled ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from cached_rows import HERE, KERNEL
from needs_torch import torch

from mucudnn.measuring.budget import Budget
from mucudnn.torch.choosing.trials import CallTrials
from mucudnn.torch.compiling import comparison
from mucudnn.torch.compiling.operators import CompiledCall

TIMES = {"choices": 1.0, "stock": 2.0}


def use(path: Path, seconds: float, calls: int) -> list[bool]:
    """Use the times of calls within a budget of a new process. Return whether each has times.

    A measurement takes a second of the process, which has run for long enough to check any time.
    """
    now = [1e6]
    trials = CallTrials(lambda: now[0])

    def measure() -> Mapping[str, float]:
        now[0] += 1.0
        return TIMES

    with Budget(seconds, lambda: now[0]).applied(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUCUDNN_CACHE", str(path))
        return [
            bool(
                trials.find_or_measure(
                    (HERE, KERNEL, f"call {number}"), measure, lambda _: "choices", lambda _: 1e3
                )
            )
            for number in range(calls)
        ]


def test_measurements_of_calls_spend_the_budget_and_later_processes_make_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    assert use(path, 2.0, 5) == [True, True, False, False, False]
    assert use(path, 0.0, 5) == [True, True, False, False, False], "the cache has two of them"
    assert use(path, 20.0, 5) == [True] * 5


def test_a_budget_that_ends_in_a_measurement_is_spent(tmp_path: Path) -> None:
    assert use(tmp_path / "cache.sqlite", 1.5, 3) == [True, True, False]


def test_a_spent_budget_checks_no_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.sqlite"
    monkeypatch.setenv("MUCUDNN_CACHE", str(path))
    use(path, 1.0, 1)
    for _ in range(3):
        assert use(path, 0.0, 1) == [True]
    measured = []
    with Budget(1.0, lambda: 1e6).applied():
        CallTrials(lambda: 1e6).find_or_measure(
            (HERE, KERNEL, "call 0"), lambda: measured.append(1) or TIMES, lambda _: "", lambda _: 1.0
        )
    assert measured == [1], "a later process with time left does"


def test_a_compiled_call_without_a_budget_is_left_to_inductor(
    cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = CompiledCall(
        "forward", (2, 4, 9, 9), (4, 4, 3, 3), torch.float32, (1, 1), (1, 1), (1, 1), 1, True, "1MiB"
    )
    times = {"compiled inductor": 1.0, "compiled epilogue": 0.0, "compiled engine 2 ALGORITHM": 0.5}
    monkeypatch.setattr(comparison, "_measure", lambda *_: times)
    monkeypatch.setenv("MUCUDNN_BUDGET", "0s")
    assert comparison.choose(call, None) is None
    monkeypatch.setenv("MUCUDNN_BUDGET", "none")
    assert comparison.choose(call, None) is not None

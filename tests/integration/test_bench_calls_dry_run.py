"""The program `calls` on few calls."""

from pathlib import Path

import needs_torch  # noqa: F401  (the program needs it)
import pytest

from bench.suites.networks import calls


def test_both_ways_of_a_layer_are_measured(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "COLD_CALLS", {0: 3, 1: 2})
    monkeypatch.setattr(calls, "REPEATS", 2)
    monkeypatch.setenv("MUCUDNN_BUDGET", "none")
    overhead, cold = list(calls.overhead()), list(calls.cold_calls())
    assert all(record.value is not None for record in (*overhead, *cold))
    assert len(overhead) == 6
    assert [record.details["calls"] for record in cold] == [3, 3, 2, 2]
    assert {record.case.split(",")[0] for record in cold} == {
        f"a layer that {way}" for way in (calls.LOOKS, calls.LEFT)
    }

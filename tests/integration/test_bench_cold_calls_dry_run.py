"""The program `cold_calls` on few calls."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from needs_torch import torch

from bench.suites.networks import cold_calls


def test_both_ways_of_a_layer_are_measured(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cold_calls, "CALLS", {0: 3, 1: 2})
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)  # other tests of this process follow
    records = list(cold_calls.measure(argparse.Namespace()))
    assert [record.details["calls"] for record in records] == [3, 3, 2, 2]
    assert all(record.value is not None for record in records)
    assert {record.case.split(",")[0] for record in records} == {
        f"a layer that {way}" for way in (cold_calls.LOOKS, cold_calls.SHORT)
    }

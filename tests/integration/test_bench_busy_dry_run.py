"""The programs `busy` and `known` on little work."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import needs_torch  # noqa: F401  (the programs need it)
import pytest

from bench.lib.record import Record
from bench.suites.core import known
from bench.suites.networks import busy

WITHOUT = {"nothing", "the model", known.KNOWN}


@pytest.fixture
def _little_work(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(busy, "LAYERS", ("mb2_ic4ih8_oc4_kh3_ph1",))
    monkeypatch.setattr(busy, "TRIES", 1)

    def steps_of(network: str, way: str, cache: Path, *options: str, **variables: str) -> dict[str, Any]:
        cache.touch()
        steps = int(options[options.index("--steps") + 1])
        return {
            "seconds": [[2.0 if "busy" in cache.name else 1.0] * steps] * (1 + (way == "both")),
            "way": None,
        }

    monkeypatch.setattr(busy, "steps_of", steps_of)
    monkeypatch.setattr(busy, "age", lambda cache: None)


@pytest.mark.usefixtures("_little_work")
@pytest.mark.parametrize("part", busy.PARTS)
def test_each_part_of_busy_has_figures(part: str) -> None:
    records = list(busy.measure(Namespace(only=part, networks=["vgg11"])))
    assert records
    assert all(isinstance(record, Record) and record.value is not None for record in records)
    if part == "recovery":
        assert records[0].value == 0.5, "the model that was tuned on a busy machine is half as fast"


def test_knowledge_reduces_the_measurements_and_hardly_changes_the_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "NETWORKS", ("vgg11",))
    records = {(r.case.partition(" after ")[2], r.metric): r.value or 0.0 for r in known.measure(Namespace())}
    assert {knowledge for knowledge, _ in records} == WITHOUT
    timed = {knowledge: records[knowledge, "algorithms timed"] for knowledge in WITHOUT}
    assert timed[known.KNOWN] < timed["the model"] < timed["nothing"]
    for knowledge in WITHOUT:
        choice = records[knowledge, "choice over the best"]
        assert choice <= 1.02 * records["nothing", "choice over the best"]

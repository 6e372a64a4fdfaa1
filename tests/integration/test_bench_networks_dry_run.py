"""The processes of the program `networks`, most of them on a network of two small layers."""

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from needs_torch import torch

from bench.__main__ import run
from bench.lib.processes import ProgramError
from bench.programs import PROGRAMS, Program
from bench.suites.networks import network_step, networks
from bench.suites.networks.network_step import interval
from bench.suites.networks.networks import DEFAULT, LIMITS, SPEEDUP, Case, name

nn = torch.nn
RUN_STEP = networks.run_step


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Replace each network by two small layers, and each new process by a call within this process."""
    threads = torch.get_num_threads()
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / "before.sqlite"))
    monkeypatch.setattr(
        network_step, "build", lambda _: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    )
    monkeypatch.setattr(network_step, "sample_of", lambda _, batch: torch.ones(batch, 3, 12, 12))
    monkeypatch.setattr(networks, "run_step", _run_here)
    monkeypatch.setattr(network_step, "forked", lambda work: work)
    yield
    torch.set_num_threads(threads)


def _run_here(arguments: Sequence[str], most_s: float) -> dict[str, Any]:
    out, before = io.StringIO(), sys.argv
    sys.argv = ["network_step", *arguments]
    try:
        with contextlib.redirect_stdout(out):
            network_step.main()
    finally:
        sys.argv = before
    results: dict[str, Any] = json.loads(out.getvalue())
    return results


@pytest.mark.parametrize("inference", [False, True])
def test_a_case_has_three_figures_of_each_limit(inference: bool) -> None:
    case = Case("unet3d", 2, 1, inference)
    records = list(networks.measure_case("networks", case, LIMITS, 0.0))
    assert [(r.bench, r.case, r.metric) for r in records] == [
        ("networks", name(case, limit), SPEEDUP) for limit in LIMITS
    ]
    for record in records:
        details = record.details
        assert record.value is not None
        assert details["first"] > 0
        assert details["peak"] >= 0
        assert details["way"] in ("choices", "stock"), "the rounds began after the model had decided"
        assert details["rounds"] == network_step.FEWEST
        least, most = details["interval"]
        assert least <= most


def test_a_case_that_fails_has_the_reason_and_does_not_end_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(arguments: Sequence[str], most_s: float) -> dict[str, Any]:
        raise ProgramError("MemoryError: no more")

    monkeypatch.setattr(networks, "run_step", fail)
    records = list(networks.measure_case("networks", Case("unet3d", 2, 1, True), LIMITS, 0.0))
    assert {record.details["reason"] for record in records} == {"MemoryError: no more"}
    assert len(records) == len(LIMITS)


def test_the_program_goes_on_where_it_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Program, "records", property(lambda _: tmp_path / "networks.jsonl"))
    asked: list[str] = []
    results: list[dict[str, Any]] = []  # those that the first network had, which all networks share

    def step(arguments: Sequence[str], most_s: float) -> dict[str, Any]:
        asked.append(arguments[0])
        if len(asked) == 3:
            raise KeyboardInterrupt
        if not results:
            results.append(_run_here(arguments, most_s))
        return results[0]

    monkeypatch.setattr(networks, "run_step", step)
    words = ["--only", "inference", "--seconds", "0"]
    with pytest.raises(KeyboardInterrupt):
        run(PROGRAMS["networks"], words)
    run(PROGRAMS["networks"], words)
    assert asked == [*DEFAULT[:3], *DEFAULT[2:]]
    run(PROGRAMS["networks"], words)
    assert len(asked) == len(DEFAULT) + 1, "nothing was missing"


def test_each_limit_begins_with_an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []
    timed = network_step._timed

    def see(step: Any) -> float:
        took = timed(step)
        file = Path(os.environ["MUCUDNN_CACHE"])
        seen.append((file.stem, file.exists()))
        return took

    monkeypatch.setattr(network_step, "_timed", see)
    model, x = network_step.build("any"), network_step.sample_of("any", 2)
    for limit in LIMITS:
        assert not (tmp_path / f"{limit}.sqlite").exists()
    network_step.interleave(model, x, LIMITS, True, tmp_path, 0.0)
    used = dict.fromkeys(stem for stem, _ in seen)
    assert [stem for stem in used if stem != "before"] == list(LIMITS), "one cache after the other"
    assert all((tmp_path / f"{limit}.sqlite").exists() for limit in LIMITS)


def test_the_interval_of_a_ratio_holds_the_ratio_and_grows_with_the_noise() -> None:
    steady = interval([2.0, 2.01, 1.99, 2.0, 2.0, 2.01], [1.0, 1.0, 1.01, 0.99, 1.0, 1.0])
    noisy = interval([2.0, 3.0, 1.5, 2.0, 2.5, 2.0], [1.0, 0.8, 1.0, 1.3, 1.0, 1.0])
    for least, most in (steady, noisy):
        assert least <= 2.0 <= most
    assert noisy[1] - noisy[0] > steady[1] - steady[0]
    together = interval([2.0, 4.0, 2.0, 8.0, 2.0, 6.0], [1.0, 2.0, 1.0, 4.0, 1.0, 3.0])
    assert together == (2.0, 2.0), "what slows a whole round down does not change the ratio"


VOLUME = ("unet3d", "--batch", "1", "--inference", "--seconds", "0", "--limits", "8MiB", "--caches")


def test_a_process_measures_times_and_peaks_of_a_network(tmp_path: Path) -> None:
    measured = RUN_STEP((*VOLUME, str(tmp_path)), 600.0)
    assert measured["peak"] > 0
    assert measured["stock_ms"] > 0
    assert measured["limits"]["8MiB"]["peak"] > 0
    assert measured["limits"]["8MiB"]["speedup"] > 0


def test_a_process_that_takes_too_long_ends_with_all_that_it_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "forks"
    script.write_text("#!/bin/sh\nsh -c 'sleep 1000; true' \"$@\" &\nwait\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(ProgramError):
        RUN_STEP((*VOLUME, str(tmp_path)), 1.0)
    end = time.monotonic() + 30
    while _mentions(tmp_path):
        assert time.monotonic() < end, "a process lives on"


def _mentions(folder: Path) -> bool:
    """Return whether a process has a folder in its arguments."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # the process has ended
            if str(folder) in file.read_text(errors="replace"):
                return True
    return False

"""`optimize` measures what the cache lacks, decides, and runs the choice whole."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeAlgorithm, FakeEngine
from optimizer_cases import KERNELS, LIMIT, MiB, run
from recorder import Recorder

from mucudnn._native import parse_descriptor
from mucudnn.cli.decisions import Decided
from mucudnn.costs.cache import Cache
from mucudnn.measuring.buffers import measuring_extent
from mucudnn.measuring.runners import Race
from mucudnn.output.answers import show
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import replay
from mucudnn.plans.result import to_json, to_plan
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.solver import WorkspaceDivision, solve_division


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


def test_everything_is_measured_once_and_then_kept(path: Path) -> None:
    engine = FakeEngine()
    first = run(path, engine)
    # Two kernels at four sizes with two algorithms that run, and one comparison for each kernel.
    assert first.new_measurements == 2 * 4 * 2 + 2
    measured = engine.calls["measure"]
    second = run(path, engine)
    assert second.new_measurements == 0
    assert (engine.calls["measure"], engine.calls["compare"]) == (measured, 2)
    assert to_json(second) == {**to_json(first), "new_measurements": 0}


def test_what_can_run_is_asked_for_once(path: Path) -> None:
    kernels = read_kernels("resnet50", Flags(batch=256), PASSES)
    engine = FakeEngine()
    every = (Limits(workspace=512 * MiB), Limits(workspace=64 * MiB), Limits(total=1024 * MiB))
    for limits in every:  # each limit has groups of channels of its own
        run(path, engine, kernels=kernels, limits=limits, run=False)
    assert engine.calls["enumerate"] >= len(kernels) * 9
    engine.calls.clear()
    for limits in every:
        run(path, engine, kernels=kernels, limits=limits, run=False)
    assert not engine.calls


def test_what_will_be_measured_is_said_before(path: Path) -> None:
    listener = Recorder()
    run(path, FakeEngine(), listener)
    assert len(listener.messages) == 1
    assert listener.messages[0].startswith("Measuring 16 times for 2 kernels, in about ")
    assert listener.messages[0].endswith(" of memory")


def test_the_json_is_of_the_schema(path: Path) -> None:
    result = to_json(run(path, FakeEngine()))
    assert list(result) == [
        "mode", "engine", "device", "library", "threads", "policy", "promise", "workspace_limit",
        "total_workspace", "new_measurements", "kernels", "total",
    ]  # fmt: skip
    assert (result["mode"], result["engine"]) == ("wr", "host")
    first, second = result["kernels"]
    assert list(first) == ["problem", "pass", "count", "undivided", "divided", "measured", "shares", "groups"]
    assert first["undivided"] == {"micro_batch": 8, "algorithm": "LEAN", "time_ms": 16.0, "workspace": 0}
    part = {"times": 4, "micro_batch": 2, "algorithm": "HUNGRY", "time_ms": 2.5, "workspace": 2 * MiB}
    assert first["divided"] == {"parts": [part], "time_ms": 10.0, "workspace": 2 * MiB}
    assert list(first["measured"]) == [
        "undivided_ms", "divided_ms", "undivided_spread_ms", "divided_spread_ms", "speedup", "is_busy",
    ]  # fmt: skip
    assert first["measured"]["speedup"] == 1.6
    assert second["count"] == 3
    assert result["total"] == {
        "undivided_ms": 64.0, "divided_ms": 40.0, "speedup": 1.6, "workspace": 2 * MiB, "apart": None,
    }  # fmt: skip
    json.dumps(result, allow_nan=False)


def test_a_division_that_does_not_hold_up_falls_back_to_undivided(path: Path) -> None:
    engine = FakeEngine()
    engine.division_factor = 1.7
    result = run(path, engine)
    assert all(decision.divided == decision.undivided != decision.outrun for decision in result.decisions)
    kernel = to_json(result)["kernels"][0]
    assert [part["algorithm"] for part in kernel["divided"]["parts"]] == ["LEAN"]
    assert kernel["measured"]["speedup"] == 1.0
    assert kernel["measured"]["divided_ms"] == 16.0
    assert to_json(result)["total"]["workspace"] == 0
    assert all(len(entry.chosen.parts) == 1 for entry in to_plan(result).kernels)
    assert run(path, engine).new_measurements == 0


def test_a_comparison_that_other_programs_disturbed_keeps_the_undivided_algorithm_and_is_made_again(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = FakeEngine()
    run(path, engine, run=False)  # measures on an idle machine
    engine.is_busy = True
    busy = run(path, engine)
    assert all(decision.is_busy and decision.outrun for decision in busy.decisions)
    assert [str(decision.best) for decision in busy.decisions] == ["1*8 LEAN"] * 2
    assert all(len(entry.chosen.parts) == 1 for entry in to_plan(busy).kernels)
    assert to_json(busy)["kernels"][0]["measured"]["is_busy"]
    show(*Decided(busy, "network", (), "mucudnn plan show", notes=True).lines())
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "4×2 HUNGRY was predicted at 1.60×, but other programs disturbed too many of its whole runs." in shown
    )
    assert "Nothing is divided: the machine is busy." in shown
    engine.is_busy = False
    idle = run(path, engine)
    assert idle.new_measurements == 2
    assert [str(decision.best) for decision in idle.decisions] == ["4*2 HUNGRY"] * 2
    assert not any(decision.is_busy for decision in idle.decisions)


def test_a_disturbed_run_of_an_alternative_leaves_what_undisturbed_runs_chose(path: Path) -> None:
    class BusyLater(SlowQuarters):
        def compare(self, *arguments: Any, **options: Any) -> tuple[list[list[float]], bool]:
            times, _ = super().compare(*arguments, **options)
            return times, self.calls["compare"] > 1

    (decision,) = run(path, BusyLater(), kernels=KERNELS[:1]).decisions
    assert (str(decision.divided), decision.is_busy, decision.outrun) == ("4*2 HUNGRY", False, None)


class SlowQuarters(FakeEngine):
    """An engine on which four parts take 44 % longer than the sum of their times, when run whole."""

    def compare(self, divisions: Any, *arguments: Any, **options: Any) -> tuple[list[list[float]], bool]:
        times, is_busy = super().compare(divisions, *arguments, **options)
        slowed = [
            [ms * (1.44 if len(division.parts) == 4 else 1) for ms in runs]
            for division, runs in zip(divisions, times, strict=True)
        ]
        return slowed, is_busy


def test_where_the_best_prediction_does_not_hold_up_the_next_best_is_run_whole_too(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = SlowQuarters()
    result = run(path, engine)
    # Predicted: 4×2 in 10 ms, 8×1 in 12 ms, undivided in 16 ms.
    assert [str(decision.divided) for decision in result.decisions] == ["8*1 HUNGRY"] * 2
    assert [decision.time_ms for decision in result.decisions] == [12.0] * 2
    assert [str(d.outrun and d.outrun.divided) for d in result.decisions] == ["4*2 HUNGRY"] * 2
    show(*Decided(result, "network", (), "mucudnn plan show", notes=True).lines())
    assert (
        "first forward runs in 8×1 HUNGRY: 4×2 HUNGRY was predicted at 1.60×, but run whole it reached 1.11×."
        in capsys.readouterr().out
    )
    assert engine.calls["compare"] == 4
    again = run(path, engine)
    assert again.new_measurements == 0
    assert again.decisions == result.decisions


def test_where_nothing_undivided_fits_there_is_nothing_to_compare_with(path: Path) -> None:
    only = {"HUNGRY": FakeAlgorithm(lambda n: 1.0 * n, lambda n: n * MiB)}
    result = to_json(run(path, FakeEngine(only)))
    kernel = result["kernels"][0]
    assert kernel["undivided"] is None
    assert kernel["measured"]["undivided_ms"] is None
    assert kernel["measured"]["speedup"] is None
    assert result["total"]["undivided_ms"] is None
    assert result["total"]["speedup"] is None


def test_without_a_run_nothing_is_compared(path: Path) -> None:
    engine = FakeEngine()
    result = to_json(run(path, engine, run=False))
    assert engine.calls["compare"] == 0
    assert all(kernel["measured"] is None for kernel in result["kernels"])
    assert result["total"]["speedup"] == 1.6


def test_a_division_that_was_stopped_says_its_gap(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(path, FakeEngine())

    def stopped(*arguments: Any, **options: Any) -> WorkspaceDivision[Kernel]:
        return replace(solve_division(*arguments, **options), gap=0.0123, reached=False, seconds=30.2)

    listener = Recorder()
    with Cache.read_only(path) as cache:
        reached = replay(cache, KERNELS, "power_of_two", Limits(total=8 * MiB), listener)
        assert listener.messages == []
        monkeypatch.setattr("mucudnn.plans.decide.solve_division", stopped)
        assert replay(cache, KERNELS, "power_of_two", Limits(total=8 * MiB), listener) == reached
    (message,) = listener.messages
    assert "stopped after 30 s at a gap of 1.23%" in message


def test_what_another_process_compared_meanwhile_is_not_compared_again(path: Path) -> None:
    class Late(FakeEngine):
        def compare(self, *arguments: Any, **options: Any) -> tuple[list[list[float]], bool]:
            if self.calls["compare"] == 0:
                self.calls["compare"] += 1
                run(path, FakeEngine(), kernels=KERNELS[1:])  # this stands for another process
            return super().compare(*arguments, **options)

    late = Late()
    assert run(path, late).new_measurements == 2 * 4 * 2 + 1
    assert late.calls["compare"] == 2  # one of the two stands for the other process


@pytest.mark.parametrize("least", [64 * MiB, 256 * MiB])
def test_slices_rotate_through_more_than_a_cache_holds_where_there_is_room(least: int) -> None:
    problem = parse_descriptor("f16:mb64_ic4ih5_oc4_kh3")[0]
    wide = measuring_extent(problem, 2**40, least)
    assert least <= wide.x + wide.y < least + 2 * (wide.x + wide.y) // wide.samples
    assert measuring_extent(problem, least // 2, least).samples == 64


@pytest.mark.parametrize("limits", [LIMIT, Limits(workspace=0), Limits(), Limits(total=6 * MiB)])
def test_a_race_chooses_what_measuring_everything_chooses(path: Path, limits: Limits) -> None:
    engine = FakeEngine()
    raced = run(path, engine, limits=limits, runner=Race())
    thorough = run(path.with_name("other.sqlite"), FakeEngine(), limits=limits)
    assert [d.divided for d in raced.decisions] == [d.divided for d in thorough.decisions]
    assert [d.undivided for d in raced.decisions] == [d.undivided for d in thorough.decisions]
    assert run(path, engine, limits=limits, runner=Race()).new_measurements == 0
    assert replay(Cache.read_only(path), KERNELS, "power_of_two", limits).decisions


def test_measuring_everything_repeats_the_measurements_of_a_race(path: Path) -> None:
    raced = run(path, FakeEngine(), runner=Race(), run=False).new_measurements
    assert 0 < raced < 2 * 4 * 2
    assert run(path, FakeEngine(), run=False).new_measurements == 2 * 4 * 2
    assert run(path, FakeEngine(), run=False).new_measurements == 0
    assert run(path, FakeEngine(), runner=Race(), run=False).new_measurements == 0

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from fake_engine import ALLOC_FAILED, FAST_AND_HUNGRY, FakeAlgorithm, FakeEngine, FakeMemory

from mucudnn._native import Engine, EngineError, parse_descriptor
from mucudnn.cli.optimize_table import show_result
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Machine
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench, machine_of
from mucudnn.measuring.buffers import measuring_extent
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import Result, optimize, replay
from mucudnn.plans.result import to_json, to_plan
from mucudnn.problems.kernels import PASSES, Flags, Kernel, read_kernels
from mucudnn.solver import WorkspaceDivision, solve_division

MiB = 2**20
LIMIT = Limits(workspace=2 * MiB)
KERNELS = [
    Kernel(parse_descriptor("mb8_ic4ih5_oc4_kh3")[0], "forward", "first"),
    Kernel(parse_descriptor("mb8_ic4ih6_oc4_kh3")[0], "backward_filter", "second", 3),
]


HUNGRY = {"HUNGRY": FAST_AND_HUNGRY}


class Recorder(Listener):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


def run(path: Path, engine: FakeEngine, listener: Listener | None = None, **options: Any) -> Result:
    with Cache.open(path) as cache:
        return optimize(
            Bench(
                cast(Engine, engine), cache, listener or Listener(), thorough=options.pop("thorough", True)
            ),
            options.pop("kernels", KERNELS),
            options.pop("policy", "power_of_two"),
            options.pop("limits", LIMIT),
            **options,
        )


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


def test_what_can_run_is_asked_for_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeMemory, "fill_random", lambda *_: None)  # it would fill gigabytes
    kernels = read_kernels("resnet50", Flags(batch=256), PASSES)
    engine = FakeEngine()
    run(path, engine, kernels=kernels, limits=Limits(workspace=512 * MiB), run=False)
    assert engine.calls["enumerate"] >= len(kernels) * 9
    engine.calls.clear()
    for limits in (Limits(workspace=512 * MiB), Limits(workspace=64 * MiB), Limits(total=1024 * MiB)):
        run(path, engine, kernels=kernels, limits=limits, run=False)
    assert not engine.calls


def test_what_failed_for_a_moment_is_used_without_and_asked_for_again(path: Path) -> None:
    engine = FakeEngine()
    failing = FakeEngine({**engine.algorithms, "HUNGRY": FakeAlgorithm(lambda n: 0.0, status=ALLOC_FAILED)})
    decisions = run(path, failing, run=False).decisions
    assert {part.algorithm for decision in decisions for part in decision.divided.parts} == {"LEAN"}
    with Cache.read_only(path) as cache:
        rows = [row for kind, row in cache.rows()]
    assert {(row["algorithm"], row["status"]) for row in rows} == {
        ("LEAN", "CUDNN_STATUS_SUCCESS"),
        ("NONE", "CUDNN_STATUS_NOT_SUPPORTED"),
    }
    again = run(path, engine, run=False)
    assert again.new_measurements == 2 * 4
    assert all(part.algorithm == "HUNGRY" for decision in again.decisions for part in decision.divided.parts)
    engine.calls.clear()
    run(path, engine, run=False)
    assert not engine.calls


def test_another_number_of_threads_is_measured_anew(path: Path) -> None:
    run(path, FakeEngine())
    assert run(path, FakeEngine(threads=2)).new_measurements > 0


def test_what_will_be_measured_is_said_before(path: Path) -> None:
    listener = Recorder()
    run(path, FakeEngine(), listener)
    assert len(listener.messages) == 1
    assert "Measuring 16 times for 2 kernels on a device" in listener.messages[0]
    assert "of memory" in listener.messages[0]


def test_the_json_is_of_the_schema(path: Path) -> None:
    result = to_json(run(path, FakeEngine()))
    assert list(result) == [
        "schema", "mode", "device", "library", "engine", "threads", "policy", "workspace_limit",
        "total_workspace", "new_measurements", "kernels", "total",
    ]  # fmt: skip
    assert (result["schema"], result["mode"], result["engine"]) == (1, "wr", "host")
    first, second = result["kernels"]
    assert list(first) == ["problem", "pass", "count", "undivided", "divided", "measured", "shares", "groups"]
    assert first["undivided"] == {"algorithm": "LEAN", "time_ms": 16.0, "workspace": 0}
    part = {"micro_batch": 2, "algorithm": "HUNGRY", "time_ms": 2.5, "workspace": 2 * MiB}
    assert first["divided"] == {"parts": [part] * 4, "time_ms": 10.0, "workspace": 2 * MiB}
    assert list(first["measured"]) == [
        "undivided_ms", "divided_ms", "speedup", "error", "same_algorithms_error", "undivided_error",
    ]  # fmt: skip
    assert first["measured"]["speedup"] == 1.6
    assert second["count"] == 3
    assert result["total"] == {
        "undivided_ms": 64.0, "divided_ms": 40.0, "speedup": 1.6, "workspace": 2 * MiB, "apart": None,
    }  # fmt: skip
    json.dumps(result, allow_nan=False)


def test_a_notebook_shows_a_result_as_a_table(path: Path) -> None:
    with_names = run(path, FakeEngine())
    text = with_names._repr_html_()
    assert text.count("<tr>") == 1 + len(with_names.decisions) + 1
    assert "times measured whole" in text
    assert "times predicted" in run(path, FakeEngine(), run=False)._repr_html_()
    odd = replace(with_names, machine=Machine("host", "<b>", "a library", 1))
    assert "&lt;b&gt;" in odd._repr_html_()


def test_errors_are_relative_to_fp64(path: Path) -> None:
    measured = to_json(run(path, FakeEngine()))["kernels"][0]["measured"]
    assert measured["undivided_error"] < 1e-7
    assert measured["error"] == pytest.approx(1e-6, rel=0.1)
    assert measured["same_algorithms_error"] == measured["error"]


def test_a_division_that_does_not_hold_up_falls_back_to_undivided(path: Path) -> None:
    engine = FakeEngine()
    engine.division_factor = 1.7
    result = run(path, engine)
    assert all(decision.dropped for decision in result.decisions)
    kernel = to_json(result)["kernels"][0]
    assert [part["algorithm"] for part in kernel["divided"]["parts"]] == ["LEAN"]
    assert kernel["measured"]["speedup"] == 1.0
    assert kernel["measured"]["divided_ms"] == 16.0
    assert to_json(result)["total"]["workspace"] == 0
    assert all(len(entry.chosen.parts) == 1 for entry in to_plan(result).kernels)
    assert run(path, engine).new_measurements == 0


class SlowQuarters(FakeEngine):
    """An engine on which four parts take 44 % longer than the sum of their times, when run whole."""

    def compare(self, divisions: Any, *arguments: Any, **options: Any) -> list[list[float]]:
        times = super().compare(divisions, *arguments, **options)
        return [
            [ms * (1.44 if len(division.parts) == 4 else 1) for ms in runs]
            for division, runs in zip(divisions, times, strict=True)
        ]


def test_where_the_best_prediction_does_not_hold_up_the_next_best_is_run_whole_too(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = SlowQuarters()
    result = run(path, engine)
    # Predicted: 4×2 in 10 ms, 8×1 in 12 ms, undivided in 16 ms.
    assert [str(decision.chosen) for decision in result.decisions] == ["8*1 HUNGRY"] * 2
    assert [decision.time_ms for decision in result.decisions] == [12.0] * 2
    assert [str(decision.outrun) for decision in result.decisions] == ["4*2 HUNGRY"] * 2
    show_result(result, "network", "mucudnn plan show")
    assert (
        "first forward runs in 8×1 HUNGRY: 4×2 HUNGRY was predicted at 10.00 ms, but run whole it was slower."
        in capsys.readouterr().out
    )
    assert engine.calls["compare"] == 4
    again = run(path, engine)
    assert again.new_measurements == 0
    assert again.decisions == result.decisions


def test_a_rival_that_promises_no_less_than_the_best_run_is_not_run(path: Path) -> None:
    engine = SlowQuarters({"LEAN": FakeAlgorithm(lambda n: 1.55 * n, in_f64=True), **HUNGRY})
    result = run(path, engine)
    # Predicted: 4×2 in 10 ms, 8×1 in 12 ms, undivided in 12.4 ms.
    assert all(decision.dropped for decision in result.decisions)
    assert engine.calls["compare"] == 2


def test_where_nothing_undivided_fits_there_is_nothing_to_compare_with(path: Path) -> None:
    only = {"HUNGRY": FakeAlgorithm(lambda n: 1.0 * n, lambda n: n * MiB, in_f64=True)}
    result = to_json(run(path, FakeEngine(only)))
    kernel = result["kernels"][0]
    assert kernel["undivided"] is None
    assert kernel["measured"]["undivided_ms"] is None
    assert kernel["measured"]["speedup"] is None
    assert kernel["measured"]["undivided_error"] is None
    assert result["total"]["undivided_ms"] is None
    assert result["total"]["speedup"] is None


def test_without_a_run_nothing_is_compared(path: Path) -> None:
    engine = FakeEngine()
    result = to_json(run(path, engine, run=False))
    assert engine.calls["compare"] == 0
    assert all(kernel["measured"] is None for kernel in result["kernels"])
    assert result["total"]["speedup"] == 1.6


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


def test_a_total_is_never_exceeded_counting_identical_kernels(path: Path) -> None:
    run(path, FakeEngine())
    with Cache.read_only(path) as cache:
        for total in range(0, 33 * MiB, MiB // 2):
            result = replay(cache, KERNELS, "power_of_two", Limits(total=total))
            used = sum(d.kernel.count * d.chosen.workspace for d in result.decisions)
            assert used == to_json(result)["total"]["workspace"] <= total


def test_what_another_process_compared_meanwhile_is_not_compared_again(path: Path) -> None:
    class Late(FakeEngine):
        def compare(self, *arguments: Any, **options: Any) -> list[list[float]]:
            if self.calls["compare"] == 0:
                self.calls["compare"] += 1
                run(path, FakeEngine(), kernels=KERNELS[1:])  # this stands for another process
            return super().compare(*arguments, **options)

    late = Late()
    assert run(path, late).new_measurements == 2 * 4 * 2 + 1
    assert late.calls["compare"] == 2  # one of the two stands for the other process


def test_a_replay_of_several_machines_asks_which(path: Path) -> None:
    run(path, FakeEngine())
    run(path, FakeEngine(threads=2))
    with Cache.read_only(path) as cache:
        with pytest.raises(UsageError, match=r"1 thread; .* 2 threads"):
            replay(cache, KERNELS, "power_of_two", LIMIT)
        assert replay(cache, KERNELS, "power_of_two", LIMIT, threads=2).machine.threads == 2


def test_an_interrupt_keeps_what_was_measured(path: Path) -> None:
    engine = FakeEngine()
    engine.interrupt_after = 6
    with pytest.raises(KeyboardInterrupt):
        run(path, engine)
    engine.interrupt_after = None
    assert run(path, engine).new_measurements == 2 * 4 * 2 + 2 - 6 + 1  # one of the six was the forecast's


def test_an_algorithm_that_fails_is_kept_as_a_failure_and_not_tried_again(path: Path) -> None:
    class Failing(FakeEngine):
        def measure(self, kernel: Kernel, algorithm: str, *args: Any, **kwargs: Any) -> list[float]:
            if algorithm == "HUNGRY":
                raise EngineError("it failed: CUDNN_STATUS_EXECUTION_FAILED")
            return super().measure(kernel, algorithm, *args, **kwargs)

    result = run(path, Failing())
    assert all(decision.divided.parts[0].algorithm == "LEAN" for decision in result.decisions)
    assert run(path, Failing()).new_measurements == 0
    with Cache.read_only(path) as cache:
        statuses = {(m.algorithm, m.status) for k in KERNELS
                    for m in cache.measurements(result.machine, k)}  # fmt: skip
    assert ("HUNGRY", "CUDNN_STATUS_EXECUTION_FAILED") in statuses


def test_after_an_error_that_the_device_does_not_recover_from_nothing_is_kept(path: Path) -> None:
    class Dead(FakeEngine):
        dead = False

        @property
        def available_memory(self) -> int:  # type: ignore[override]  # the base class has a constant
            if self.dead:
                raise EngineError("cudaMemGetInfo: an illegal memory access was encountered")
            return 2**34

        def measure(self, kernel: Kernel, algorithm: str, *args: Any, **kwargs: Any) -> list[float]:
            if algorithm == "HUNGRY":
                self.dead = True
                raise EngineError("it failed: an illegal memory access was encountered")
            return super().measure(kernel, algorithm, *args, **kwargs)

    with pytest.raises(EngineError, match="cudaMemGetInfo"):
        run(path, Dead())
    with Cache.read_only(path) as cache:
        machine = machine_of(FakeEngine())
        rows = [row for k in KERNELS for row in cache.measurements(machine, k)]
    assert {row.algorithm for row in rows} == {"LEAN", "NONE"}


def test_what_fails_when_it_is_run_whole_has_no_error_and_is_no_reference(path: Path) -> None:
    class Failing(FakeEngine):
        def execute(self, kernel: Kernel, parts: Any, *args: Any, **kwargs: Any) -> None:
            size, algorithm = parts[0]
            if algorithm == "BROKEN" or (algorithm == "HUNGRY" and size == kernel.mini_batch):
                raise EngineError("it failed: CUDNN_STATUS_EXECUTION_FAILED")
            super().execute(kernel, parts, *args, **kwargs)

    algorithms = {"BROKEN": FakeAlgorithm(lambda n: 9.0 * n, in_f64=True), **FakeEngine().algorithms}
    measured = to_json(run(path, Failing(algorithms)))["kernels"][0]["measured"]
    assert measured["error"] == pytest.approx(1e-6, rel=0.1)
    assert measured["undivided_error"] < 1e-7
    assert measured["same_algorithms_error"] is None


@pytest.mark.parametrize("least", [64 * MiB, 256 * MiB])
def test_slices_rotate_through_more_than_a_cache_holds_where_there_is_room(least: int) -> None:
    problem = parse_descriptor("f16:mb64_ic4ih5_oc4_kh3")[0]
    wide = measuring_extent(problem, 2**40, least)
    assert least <= wide.x + wide.y < least + 2 * (wide.x + wide.y) // wide.samples
    assert measuring_extent(problem, least // 2, least).samples == 64


def test_tensors_that_do_not_fit_the_memory_suggest_a_smaller_batch() -> None:
    problem = parse_descriptor("mb64_ic4ih5_oc4_kh3")[0]
    sample = (4 * 25 + 4 * 9) * 4
    with pytest.raises(MucudnnError, match="try --batch 8"):
        measuring_extent(problem, 4 * 4 * 9 * 4 + 10 * sample, 64 * MiB)
    with pytest.raises(MucudnnError, match="not even one sample"):
        measuring_extent(problem, sample, 64 * MiB)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_a_cache_of_each_version_is_still_read(version: int) -> None:
    """Replay the caches that earlier versions wrote. The files stay as they are when the format changes."""
    old = Path(__file__).parent.parent / "data" / f"cache-{version}.sqlite"
    whole = Kernel(parse_descriptor("mb8_ic4ih5_oc4_kh3")[0], "forward")
    gradient = Kernel(parse_descriptor("f16:mb16_ic4ih5_oc4_kh3")[0], "backward_filter")
    before = old.read_bytes()
    with Cache.read_only(old) as cache:
        result = replay(cache, [whole, gradient], "power_of_two", LIMIT)
        first, second = result.decisions
        runnable = cache.enumerations(result.machine, whole)
    assert {size: [one.algorithm for one in listed] for size, listed in runnable.items()} == (
        {} if version == 1 else {size: ["LEAN", "HUNGRY"] for size in (1, 2, 4, 8)}
    )
    assert [(p.micro_batch, p.algorithm) for p in first.divided.parts] == [(2, "HUNGRY")] * 4
    # The file has times of slices for this filter gradient in fp16, which mucudnn no longer divides.
    assert [(p.micro_batch, p.algorithm) for p in second.divided.parts] == [(16, "LEAN")]
    assert old.read_bytes() == before


@pytest.mark.parametrize("limits", [LIMIT, Limits(workspace=0), Limits(), Limits(total=6 * MiB)])
def test_a_race_chooses_what_measuring_everything_chooses(path: Path, limits: Limits) -> None:
    engine = FakeEngine()
    raced = run(path, engine, limits=limits, thorough=False)
    thorough = run(path.with_name("other.sqlite"), FakeEngine(), limits=limits)
    assert [d.divided for d in raced.decisions] == [d.divided for d in thorough.decisions]
    assert [d.undivided for d in raced.decisions] == [d.undivided for d in thorough.decisions]
    assert run(path, engine, limits=limits, thorough=False).new_measurements == 0
    assert replay(Cache.recorded(path), KERNELS, "power_of_two", limits).decisions


def test_measuring_everything_repeats_the_measurements_of_a_race(path: Path) -> None:
    raced = run(path, FakeEngine(), thorough=False, run=False).new_measurements
    assert 0 < raced < 2 * 4 * 2
    assert run(path, FakeEngine(), run=False).new_measurements == 2 * 4 * 2
    assert run(path, FakeEngine(), run=False).new_measurements == 0
    assert run(path, FakeEngine(), thorough=False, run=False).new_measurements == 0

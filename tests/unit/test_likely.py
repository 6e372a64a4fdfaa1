"""Races leave out algorithms that similar kernels or the cost model show to be far behind."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
from fake_engine import FakeAlgorithm, FakeEngine

from mucudnn._native import Engine, Timing, parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import SUCCESS, UNLIKELY, Machine, Measurement
from mucudnn.costs.schema import MEASUREMENT
from mucudnn.costs.similar import find_similar
from mucudnn.listener import Listener
from mucudnn.measuring import measure as measure_module
from mucudnn.measuring.bench import Bench, machine_of
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.measure import find_missing
from mucudnn.measuring.modelled_costs import modelled_ms
from mucudnn.measuring.runners import Exhaustive, Race, Runner
from mucudnn.problems.kernels import Kernel

NAMES = ("IMPLICIT_GEMM", "GEMM", "WINOGRAD_NONFUSED", "FFT_TILING")
MB = 2**20


def kernel_of(text: str, pass_: str = "forward") -> Kernel:
    return Kernel(parse_descriptor(text)[0], pass_)


FIRST = kernel_of("mb16_ic64ih28_oc64_kh3_ph1")
NEXT = kernel_of("mb16_ic64ih28_oc128_kh3_ph1")  # another layer
HALVES = kernel_of("f16:mb16_ic64ih28_oc64_kh3_ph1")  # the model was fitted to f32


class ModelledEngine(FakeEngine):
    """An engine whose times are those of the cost model, times a factor for each algorithm."""

    def __init__(self, **factors: float) -> None:
        def workspace(name: str) -> FakeAlgorithm:
            return FakeAlgorithm(lambda n: 0.0, lambda n: 0 if name == "IMPLICIT_GEMM" else n * MB)

        super().__init__({name: workspace(name) for name in NAMES})
        self.factors = factors
        self.measured: list[tuple[int, str]] = []

    def ms(self, kernel: Kernel, name: str) -> float:
        needed = self.algorithms[name].workspace(kernel.mini_batch)
        return self.factors.get(name, 1.0) * modelled_ms(kernel, kernel.mini_batch, name, needed)

    def measure(self, kernel: Kernel, algorithm: str, *arguments: object, **more: object) -> Timing:
        self.measured.append((kernel.mini_batch, algorithm))
        ms = self.ms(kernel, algorithm)
        return Timing(ms, ms, ms, False)


def race(
    cache: Cache,
    engine: ModelledEngine,
    kernel: Kernel,
    limit: int | None = None,
    runner: Runner | None = None,
    *,
    undivided: bool = False,
) -> set[str]:
    """Race in a new process. Return the algorithms that it measures."""
    engine.measured = []
    bench = Bench(cast(Engine, engine), cache, Listener(), runner or Race(is_hurried=True))
    benchmark(bench, [kernel], "power_of_two", limits=(limit,), undivided=undivided)
    return {name for _, name in engine.measured}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache.in_memory(tmp_path / "none")


def test_the_model_alone_leaves_out_what_is_far_behind(cache: Cache) -> None:
    engine = ModelledEngine()
    times = {name: engine.ms(FIRST, name) for name in NAMES}
    measured = race(cache, engine, FIRST)
    assert min(times, key=times.__getitem__) in measured
    rows = cache.measurements(machine_of(cast(Engine, engine)), FIRST)
    left_out = {row.algorithm for row in rows if row.status == UNLIKELY}
    assert left_out
    assert not left_out & measured
    assert all(engine.ms(FIRST, name) > 1.5 * min(times.values()) for name in left_out)


def test_without_a_model_for_its_type_a_kernel_gets_a_full_race(cache: Cache) -> None:
    assert race(cache, ModelledEngine(), HALVES) == {*NAMES}


def test_similar_kernels_correct_the_model(cache: Cache) -> None:
    slow = ModelledEngine(WINOGRAD_NONFUSED=20.0)  # on this machine the model is wrong
    assert "WINOGRAD_NONFUSED" in race(cache, slow, FIRST)
    measured = race(cache, slow, NEXT)
    assert "WINOGRAD_NONFUSED" not in measured
    assert min(NAMES, key=lambda name: slow.ms(NEXT, name)) in measured


@pytest.mark.parametrize(
    "factors", [{}, {"FFT_TILING": 0.5}, {"GEMM": 0.5}, {"IMPLICIT_GEMM": 0.5, "GEMM": 2.0}], ids=str
)
def test_the_choice_stays_that_of_a_full_race_if_the_model_errs_by_2(
    factors: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(name: str) -> list[tuple[float, int, str]]:
        engine, best = ModelledEngine(**factors), []
        with Cache.in_memory(tmp_path / name) as own:
            for kernel in (FIRST, NEXT):
                race(own, engine, kernel)
                rows = own.measurements(machine_of(cast(Engine, engine)), kernel)
                best.append(
                    min(
                        (row.time_ms / row.micro_batch, row.micro_batch, row.algorithm)
                        for row in rows
                        if row.time_ms
                    )
                )
        return best

    choices = chosen("part")
    monkeypatch.setattr(measure_module, "find_unlikely", lambda *_: {})
    assert choices == chosen("full")


def test_a_later_process_has_nothing_to_add(cache: Cache) -> None:
    engine = ModelledEngine()
    race(cache, engine, FIRST)
    race(cache, engine, NEXT)
    for kernel in (FIRST, NEXT):
        bench = Bench(cast(Engine, engine), cache, Listener(), Race(is_hurried=True))
        assert not find_missing(bench, [kernel], "power_of_two").tasks
        assert race(cache, engine, kernel) == set()


def test_a_process_that_waited_for_another_race_leaves_out_the_same_algorithms(cache: Cache) -> None:
    slow = ModelledEngine(WINOGRAD_NONFUSED=20.0)
    waiting = Bench(cast(Engine, slow), cache, Listener(), Race(is_hurried=True))
    missing = find_missing(waiting, [NEXT], "power_of_two")
    left_out = {*NAMES} - race(cache, slow, NEXT)
    assert left_out
    race(cache, slow, FIRST)  # corrects the model
    slow.measured = []
    measure_module.measure(waiting, missing)
    assert slow.measured == []


def test_measuring_everything_measures_what_a_race_left_out(cache: Cache) -> None:
    engine = ModelledEngine()
    race(cache, engine, FIRST)
    assert race(cache, engine, FIRST, runner=Exhaustive()) == {*NAMES}
    rows = cache.measurements(machine_of(cast(Engine, engine)), FIRST)
    assert UNLIKELY not in {row.status for row in rows}


def test_a_smaller_limit_brings_unlikely_algorithms_back(cache: Cache) -> None:
    engine = ModelledEngine()
    left_out = {*NAMES} - race(cache, engine, FIRST)
    assert "GEMM" in left_out
    engine.algorithms["WINOGRAD_NONFUSED"] = FakeAlgorithm(lambda n: 0.0, lambda n: n * 100 * MB)
    unlikely = [row for row in cache.select(MEASUREMENT) if row["time_ms"] is None]
    cache.query("DELETE FROM rows")
    cache.merge((MEASUREMENT, row | {"workspace": 200 * MB}) for row in unlikely)
    assert race(cache, engine, FIRST, 64 * MB) & left_out


def test_a_comparison_gets_the_only_algorithm_that_fits_undivided(cache: Cache) -> None:
    engine, limit = ModelledEngine(IMPLICIT_GEMM=5.0), 8 * MB  # half of what the others need undivided
    assert "IMPLICIT_GEMM" not in race(cache, engine, FIRST, limit)
    race(cache, engine, FIRST, limit, undivided=True)
    assert (16, "IMPLICIT_GEMM") in engine.measured
    assert race(cache, engine, FIRST, limit, undivided=True) == set()


def test_what_is_unlikely_replaces_no_measurement_of_another_host(cache: Cache, tmp_path: Path) -> None:
    machine, marker = Machine("host", "a", "b", 1), Measurement(16, "GEMM", UNLIKELY, 5)
    real = Measurement(16, "GEMM", SUCCESS, 3, "raced", 7.0)
    with Cache.in_memory(tmp_path / "other") as other, cache:
        cache.add(machine, FIRST, real)
        other.add(machine, FIRST, marker)
        rows = [(table, {**row, "measured_at": "2100-01-01T00:00:00+00:00"}) for table, row in other.rows()]
        assert cache.merge(rows) == 0
        assert cache.measurements(machine, FIRST) == [real]


def test_similar_kernels_have_the_same_taps_and_the_nearest_come_first(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("host", "a", "b", 1)
    texts = ["mb4_ic64ih28_oc64_kh3_ph1", "mb4_ic64ih28_oc96_kh3_ph1", "mb4_ic512ih7_oc512_kh3_ph1"]
    others = ["mb4_ic64ih28_oc64_kh5_ph2", "g64mb4_ic64ih28_oc64_kh3_ph1", "nhwc:mb4_ic64ih28_oc64_kh3_ph1"]
    for text in (*reversed(texts), *others):
        cache.add(machine, kernel_of(text), Measurement(4, "GEMM", SUCCESS, 0, "", 1.0))
    cache.add(machine, kernel_of(texts[0], "backward_data"), Measurement(4, "GEMM", SUCCESS, 0, "", 1.0))
    cache.add(machine, kernel_of(texts[0]), Measurement(4, "FFT", "CUDNN_STATUS_NOT_SUPPORTED", 0))
    similar = find_similar(cache, machine, FIRST, 64)
    assert [kernel.at(4) for kernel, _ in similar] == [kernel_of(text) for text in texts]
    assert len(find_similar(cache, machine, FIRST, 1)) == 1
    monkeypatch.setattr(cache, "_since", "2100-01-01T00:00:00+00:00")
    assert find_similar(cache, machine, FIRST, 64) == []


@pytest.mark.parametrize("threads", [1, 2])
def test_disturbed_times_on_several_threads_say_nothing_about_similar_kernels(
    cache: Cache, threads: int
) -> None:
    machine = Machine("host", "a processor", "a library", threads)
    for algorithm, tries in (("GEMM", 0), ("FFT_TILING", 1)):
        cache.add(machine, NEXT, Measurement(4, algorithm, SUCCESS, 0, "", 1.0, busy_tries=tries))
    algorithms = {row.algorithm for _, row in find_similar(cache, machine, FIRST, 64)}
    assert algorithms == ({"GEMM"} if threads > 1 else {"GEMM", "FFT_TILING"})

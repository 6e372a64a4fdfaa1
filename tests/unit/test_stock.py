"""STOCK, the framework's own convolution, competes with the engine's algorithms."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from cached_rows import KERNEL, PROBLEM
from fake_engine import FakeEngine

from mucudnn._native import Engine
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import FRAMEWORK, STOCK, STOCK_SLICE, Machine
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench, machine_of
from mucudnn.measuring.buffers import Tensors
from mucudnn.measuring.runners import Exhaustive
from mucudnn.measuring.source import InterleavedTimes, StockTiming
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import optimize, replay
from mucudnn.plans.result import Result
from mucudnn.problems.kernels import Kernel

FILTERS = Kernel(PROBLEM, "backward_filter")


@dataclass
class FakeSource:
    """A framework whose time for a micro-batch and whose scratch memory are set by the test."""

    whole_ms: float = 100.0
    slice_ms: float = 100.0
    scratch: int = 0
    error: Exception | None = None
    version: str = "framework 1.0"
    measured: list[tuple[str, int, bool]] = field(default_factory=list)

    @property
    def machine(self) -> Machine:
        return Machine(FRAMEWORK, "a device", self.version, 1)

    def admits(self, kernel: Kernel) -> bool:
        return True

    def timer(self, kernel: Kernel, samples: int) -> Any:
        source = self

        class Timer:
            def measure(self, micro_batch: int, *, is_slice: bool, budget_ms: Any = None) -> StockTiming:
                source.measured.append((kernel.pass_, micro_batch, is_slice))
                if source.error is not None:
                    raise source.error
                ms = source.slice_ms if is_slice else source.whole_ms
                return StockTiming(0.01 + ms * micro_batch, source.scratch * micro_batch)

            def tensors(self, engine: Any) -> Tensors:
                x, w, y = (engine.allocate(8) for _ in range(3))
                return Tensors(x, w, y)

        return Timer()

    def compare(self, engine: Any, kernel: Kernel, configurations: Any, rounds: int) -> InterleavedTimes:
        return InterleavedTimes([[configuration.time_ms] * rounds for configuration in configurations], False)


def run(path: Path, source: FakeSource, *, limit: int | None = None, kernel: Kernel = KERNEL) -> Result:
    with Cache.open(path) as cache:
        bench = Bench(cast(Engine, FakeEngine()), cache, Listener(), Exhaustive(), source)
        return optimize(bench, [kernel], "power_of_two", Limits(workspace=limit))


def choice(result: Result) -> str:
    return str(result.decisions[0].divided)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


def test_it_is_measured_undivided_and_in_slices_of_every_size_once(path: Path) -> None:
    source = FakeSource()
    run(path, source)
    assert sorted(source.measured) == [
        ("forward", 1, True), ("forward", 2, True), ("forward", 4, True), ("forward", 8, False),
    ]  # fmt: skip
    assert run(path, source).new_measurements == 0
    assert len(source.measured) == 4


def test_it_is_chosen_undivided_where_that_is_the_fastest(path: Path) -> None:
    decision = run(path, FakeSource(whole_ms=0.1)).decisions[0]
    assert [(part.micro_batch, part.algorithm) for part in decision.divided.parts] == [(8, STOCK)]


def test_it_is_chosen_in_slices_where_its_scratch_exceeds_the_limit(path: Path) -> None:
    decision = run(path, FakeSource(whole_ms=0.1, slice_ms=0.2, scratch=100), limit=450).decisions[0]
    assert [(part.micro_batch, part.algorithm) for part in decision.divided.parts] == [(4, STOCK)] * 2


def test_a_larger_mini_batch_takes_slices_and_not_the_undivided_call(path: Path) -> None:
    run(path, FakeSource(whole_ms=0.1))
    larger = FakeSource(whole_ms=50.0, slice_ms=50.0)
    result = run(path, larger, kernel=KERNEL.at(16))
    assert sorted(larger.measured) == [("forward", 8, True), ("forward", 16, False)]
    assert STOCK not in choice(result)


def test_a_kernel_that_it_cannot_run_is_kept_as_a_failure(path: Path) -> None:
    source = FakeSource(error=RuntimeError("no such type\nand more"))
    assert STOCK not in choice(run(path, source))
    with Cache.open(path) as cache:
        rows = cache.measurements(source.machine, KERNEL)
    assert {(row.algorithm, row.status) for row in rows} == {
        (STOCK, "no such type"), (STOCK_SLICE, "no such type"),
    }  # fmt: skip
    run(path, source)
    assert len(source.measured) == 4


def test_a_lack_of_memory_is_not_kept(path: Path) -> None:
    run(path, FakeSource(error=MemoryError()))
    again = FakeSource(whole_ms=0.1)
    assert STOCK in choice(run(path, again))
    assert len(again.measured) == 4


def test_its_filter_gradients_in_16_bits_are_not_summed_from_many_slices(path: Path) -> None:
    problem = FILTERS.problem.replace(data_type="bf16", mini_batch=16)
    source = FakeSource(slice_ms=1e-6)
    decision = run(path, source, kernel=Kernel(problem, "backward_filter")).decisions[0]
    assert 1 < len(decision.divided.parts) <= 4


def test_decisions_from_a_record_need_no_framework(path: Path) -> None:
    run(path, FakeSource(whole_ms=0.1))
    with Cache.open(path) as cache:
        result = replay(cache, [KERNEL], "power_of_two", Limits())
    assert result.machine == machine_of(cast(Engine, FakeEngine()))
    assert STOCK not in choice(result)

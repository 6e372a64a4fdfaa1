"""`optimize` keeps the measurements that succeeded when another one or a run fails."""

from pathlib import Path
from typing import Any

import pytest
from fake_engine import ALLOC_FAILED, FakeAlgorithm, FakeEngine
from optimizer_cases import KERNELS, MiB, run

from mucudnn._native import EngineError, parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.errors import MucudnnError
from mucudnn.measuring.bench import machine_of
from mucudnn.measuring.buffers import measuring_extent
from mucudnn.problems.kernels import Kernel


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


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


def test_tensors_that_do_not_fit_the_memory_suggest_a_smaller_batch() -> None:
    problem = parse_descriptor("mb64_ic4ih5_oc4_kh3")[0]
    sample = (4 * 25 + 4 * 9) * 4
    with pytest.raises(MucudnnError, match="try --batch 8"):
        measuring_extent(problem, 4 * 4 * 9 * 4 + 10 * sample, 64 * MiB)
    with pytest.raises(MucudnnError, match="not even one sample"):
        measuring_extent(problem, sample, 64 * MiB)

"""The timer of a kernel's algorithms, which the package and the drop-in share."""

import pytest

from mucudnn._native import Engine, EngineError, parse_descriptor, samples_to_time
from mucudnn.problems.kernels import Kernel

PROBLEM = parse_descriptor("mb8_ic4ih12_oc4_kh3_ph1")[0]
FORWARD = Kernel(PROBLEM, "forward")
SAMPLE = 2 * 4 * 12 * 12 * 4  # bytes of x and y
FILTER = 4 * 4 * 9 * 4


@pytest.mark.parametrize("pass_", ["forward", "backward_data", "backward_filter"])
def test_each_algorithm_is_timed_at_each_size(engine: Engine, pass_: str) -> None:
    kernel = Kernel(PROBLEM, pass_)
    candidates = [c for c in engine.enumerate(kernel) if c.status == "CUDNN_STATUS_SUCCESS"]
    timer = engine.timer(kernel, workspace=max(c.workspace for c in candidates), memory_cap=2**30)
    for candidate in candidates:
        for size in (8, 1):
            timing = timer.measure(size, candidate.algorithm, candidate.workspace)
            assert timing.wall_ms >= timing.time_ms > 0
            assert timing.cpu_ms is not None
            assert timing.cpu_ms > 0


def test_an_algorithm_that_cannot_run_is_an_error_and_the_timer_goes_on(engine: Engine) -> None:
    timer = engine.timer(FORWARD, workspace=0, memory_cap=2**30)
    with pytest.raises(EngineError, match="NONE"):
        timer.measure(8, "NONE", 0)
    with pytest.raises(ValueError, match="needs 4096 bytes of workspace, the timer has 0"):
        timer.measure(8, "GEMM", 4096)
    assert timer.measure(8, "IMPLICIT_GEMM", 0).time_ms > 0


def test_tensors_and_workspace_stay_within_the_cap(engine: Engine) -> None:
    whole = 8 * SAMPLE + FILTER
    engine.timer(FORWARD, workspace=100, memory_cap=whole + 100)
    for workspace, cap in ((101, whole + 100), (0, whole - 1)):
        with pytest.raises(MemoryError):
            engine.timer(FORWARD, workspace=workspace, memory_cap=cap)


def test_runs_rotate_through_more_than_the_caches_hold_where_there_is_room() -> None:
    assert samples_to_time(PROBLEM, 2**30, 100 * SAMPLE) == 100
    assert samples_to_time(PROBLEM, 2**30, 100 * SAMPLE + 1) == 101
    assert samples_to_time(PROBLEM, 2**30, 3 * SAMPLE) == 8
    assert samples_to_time(PROBLEM, 100 * SAMPLE, 100 * SAMPLE) == 8  # no room for the filter

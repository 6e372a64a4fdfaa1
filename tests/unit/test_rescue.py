"""A convolution whose workspace finds no memory is divided further, down to single samples."""

import logging
from typing import Any

import numpy as np
import pytest
from plans import plan_by

import mucudnn
from mucudnn.arrays.devices import ArrayDevice
from mucudnn.errors import NothingFitsError
from mucudnn.plans.plan import Plan
from mucudnn.problems import shapes
from mucudnn.problems.kernels import PASSES

pytestmark = pytest.mark.usefixtures("cache_path")

SAMPLES = 8
RANDOM = np.random.default_rng(1)
X, W, DY = (
    RANDOM.random(shape, np.float32) for shape in ((SAMPLES, 8, 14, 14), (8, 8, 3, 3), (SAMPLES, 8, 14, 14))
)
# The algorithm of each pass whose workspace grows with the mini-batch.
GROWING = {"forward": "GEMM", "backward_data": "ALGO_0", "backward_filter": "ALGO_0"}
ONE_SAMPLE = 64000  # a little more than its bytes for each sample


class ScarceMemory:
    """A device's memory of which `free` bytes are left for a workspace; it notes each workspace."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        self.tried: list[int] = []
        run = ArrayDevice.run

        def scarce(device: ArrayDevice, work: Any, size: int, *options: Any) -> None:
            self.tried.append(size)
            if size > self.free:
                raise NothingFitsError(f"there is no memory for a workspace of {size} B")
            run(device, work, size, *options)

        monkeypatch.setattr(ArrayDevice, "run", scarce)


def undivided(pass_: str) -> Plan:
    """Return a plan that runs the growing algorithm undivided."""
    problem = shapes.problem_of("f32", "nchw", X.shape, W.shape, 1, 1, 1, 1)
    return plan_by({pass_: GROWING[pass_]}, problem, SAMPLES, workspace=SAMPLES * ONE_SAMPLE)


def convolve(pass_: str, plan: Plan) -> Any:
    """Run a pass by the plan."""
    if pass_ == "forward":
        return mucudnn.convolution_forward(X, W, padding=1, plan=plan)
    if pass_ == "backward_data":
        return mucudnn.convolution_backward_data(DY, W, X.shape, padding=1, plan=plan)
    return mucudnn.convolution_backward_filter(X, DY, W.shape, padding=1, plan=plan)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("samples", [4, 2, 1, 0])
def test_slices_get_smaller_until_their_workspace_fits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, pass_: str, samples: int
) -> None:
    plan = undivided(pass_)
    expected = convolve(pass_, plan)
    memory = ScarceMemory(monkeypatch, samples * ONE_SAMPLE)
    with caplog.at_level(logging.WARNING, "mucudnn"):
        np.testing.assert_allclose(convolve(pass_, plan), expected, rtol=1e-4, atol=1e-3)
    assert memory.tried == sorted(memory.tried, reverse=True)
    assert memory.tried[0] > memory.free >= memory.tried[-1]
    assert len(caplog.messages) == 1
    assert "there was no memory for" in caplog.messages[0]


def test_later_calls_begin_with_the_division_that_fitted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plan = undivided("forward")
    memory = ScarceMemory(monkeypatch, 2 * ONE_SAMPLE)
    convolve("forward", plan)
    fitted = memory.tried[-1]
    memory.tried.clear()
    convolve("forward", plan)
    assert memory.tried == [fitted]
    memory.free = ONE_SAMPLE
    convolve("forward", plan)
    assert memory.tried[-1] <= ONE_SAMPLE < fitted
    assert len(caplog.messages) == 1


def test_without_memory_for_any_division_the_error_is_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = undivided("forward")
    ScarceMemory(monkeypatch, -1)
    with pytest.raises(NothingFitsError, match="no memory for a workspace of 501824 B"):
        convolve("forward", plan)

"""The programs of the GPU bench ask PyTorch for the right memory and times, shown without a GPU."""

from types import SimpleNamespace

import needs_torch  # noqa: F401  (the programs import it)
import pytest
import torch

from bench.suites.gpu.torch_convolution import ROUNDING, leave_free
from bench.suites.gpu.torch_timing import MIB, median_milliseconds

H200 = 150_121_545_728  # bytes


@pytest.mark.parametrize("reserved", [4_314_890_240, H200])
def test_a_program_may_allocate_as_much_more_as_it_is_left(
    reserved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # There is no GPU here. So the test replaces the calls of torch.cuda that would need one, and no others.
    set_to: list[tuple[float, int]] = []
    monkeypatch.setattr("torch.cuda._lazy_init", lambda: None)
    monkeypatch.setattr("torch.cuda.memory._lazy_init", lambda: None)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    properties = SimpleNamespace(total_memory=H200)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device=None: properties)
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device=None: reserved)
    monkeypatch.setattr(
        torch._C, "_cuda_setMemoryFraction", lambda *arguments: set_to.append(arguments), raising=False
    )
    leave_free(1024 * MIB)
    ((fraction, device),) = set_to
    assert device == 0
    assert fraction * H200 == pytest.approx(min(H200, reserved + 1024 * MIB + ROUNDING), abs=1)


class Event:
    """A CUDA event of a device whose clock is the number of calls."""

    calls = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.calls

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "Event") -> float:
        return float(end.at - self.at)


@pytest.mark.parametrize("runs", [1, 5])
def test_calls_are_timed_between_events_and_short_ones_several_at_a_time(
    runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, synchronized = torch.device("cuda"), list[torch.device]()
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.synchronize", synchronized.append)
    seconds = iter(range(100))
    monkeypatch.setattr("time.perf_counter", lambda: next(seconds) * 0.0005)

    def call() -> None:
        Event.calls += 1

    Event.calls = 0
    assert median_milliseconds(device, call, runs) == 1.0
    assert Event.calls == 1 + runs * 10  # each takes half a millisecond
    assert synchronized == [device, device]

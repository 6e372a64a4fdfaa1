"""The tuner works only while a program waits for it between two steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from needs_torch import mt

from mucudnn.torch.tuning import SHARE, Tuner, Work

assert mt.convert is not None  # PyTorch is there


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tuner(clock: Clock) -> Iterator[Tuner]:
    made = Tuner(clock)
    yield made
    made.stop()


def parts(clock: Clock, log: list[str], name: str, seconds: list[float]) -> Work:
    for number, second in enumerate(seconds):
        clock.now += second
        log.append(f"{name}{number}")
        yield


def step(tuner: Tuner, clock: Clock, seconds: float) -> None:
    """Let a program with two modules make a step."""
    for module in ("first", "second"):
        tuner.give_turn(module)
        clock.now += seconds / 2


def test_work_is_done_between_steps_for_a_share_of_their_time(tuner: Tuner, clock: Clock) -> None:
    log: list[str] = []
    tuner.submit("call", parts(clock, log, "a", [1.0] * 5))
    step(tuner, clock, 4.0)
    assert log == []
    step(tuner, clock, 4.0)  # at its begin the thread may work for SHARE times 4 s
    assert SHARE == 0.5
    assert log == ["a0", "a1"]
    step(tuner, clock, 4.0)
    assert log == ["a0", "a1", "a2", "a3"]


def test_a_long_part_is_paid_for_by_later_steps(tuner: Tuner, clock: Clock) -> None:
    log: list[str] = []
    tuner.submit("call", parts(clock, log, "a", [5.0, 1.0, 1.0]))
    for _ in range(3):
        step(tuner, clock, 4.0)
    assert log == ["a0"]  # 2 s were due, 5 s were taken, and 2 s more are due: the debt is 1 s
    step(tuner, clock, 4.0)
    assert log == ["a0", "a1"]


def test_a_program_never_waits_where_no_work_is_left(tuner: Tuner, clock: Clock) -> None:
    log: list[str] = []
    tuner.submit("call", parts(clock, log, "a", [1.0]))
    for _ in range(4):
        step(tuner, clock, 4.0)
    assert tuner.is_idle
    assert not tuner.has("call")


def test_work_about_the_same_call_is_taken_once(tuner: Tuner, clock: Clock) -> None:
    log: list[str] = []
    for name in ("a", "b"):
        tuner.submit("call", parts(clock, log, name, [1.0]))
    for _ in range(4):
        step(tuner, clock, 4.0)
    assert log == ["a0"]


def test_work_that_fails_ends_no_program(
    tuner: Tuner, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def failing() -> Work:
        yield
        raise RuntimeError("the device is gone")

    log: list[str] = []
    tuner.submit("one", failing())
    tuner.submit("two", parts(clock, log, "a", [1.0]))
    for _ in range(4):
        step(tuner, clock, 4.0)
    assert log == ["a0"]
    assert "the device is gone" in caplog.text


def test_work_is_done_by_a_thread_of_its_own(tuner: Tuner, clock: Clock) -> None:
    seen: list[threading.Thread] = []

    def work() -> Work:
        seen.append(threading.current_thread())
        clock.now += 1.0
        yield

    tuner.submit("call", work())
    for _ in range(3):
        step(tuner, clock, 4.0)
    assert seen
    assert seen[0] is not threading.main_thread()

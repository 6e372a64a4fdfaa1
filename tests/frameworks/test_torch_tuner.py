"""The tuner works only while a program waits for it between two steps."""

import threading
from collections.abc import Hashable, Iterator

import pytest
from needs_torch import mt

from mucudnn.torch.choosing.background import SHARE, Tuner, Work

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
        tuner.wait_after_step(module)
        clock.now += seconds / 2


def test_work_is_done_between_steps_for_a_share_of_their_time(tuner: Tuner, clock: Clock) -> None:
    log: list[str] = []
    tuner.submit("call", parts(clock, log, "a", [1.0] * 5))
    step(tuner, clock, 4.0)
    assert log == []
    step(tuner, clock, 4.0)  # at its beginning the thread may work for SHARE times 4 s
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


def test_a_thread_does_not_wait_for_time_that_another_one_has_used(tuner: Tuner, clock: Clock) -> None:
    tuner.submit("call", parts(clock, [], "a", [1.0] * 3))
    tuner.wait_after_step("module")
    clock.now = 1.0
    thread = threading.Thread(target=tuner.wait_after_step, args=("module",), daemon=True)
    with tuner._changed:  # another thread ends a step, too
        thread.start()
        thread.join(0.2)
        tuner._credit_s = -1.0
    thread.join(60)
    assert not thread.is_alive()


def test_a_program_never_waits_where_no_work_is_left(tuner: Tuner, clock: Clock) -> None:
    log: list[str] = []
    tuner.submit("call", parts(clock, log, "a", [1.0]))
    for _ in range(4):
        step(tuner, clock, 4.0)
    assert not tuner._work
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


def test_endless_new_calls_drop_the_oldest_but_started_work_finishes(
    tuner: Tuner, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mucudnn.torch.choosing.background._MOST_WAITING", 3)
    log: list[str] = []
    tuner.submit("begun", parts(clock, log, "begun", [1.0] * 6))
    for _ in range(2):
        step(tuner, clock, 2.0)
    assert log == ["begun0"]
    for number in range(50):
        tuner.submit(number, parts(clock, log, f"call {number} part ", [1.0]))
        assert len(tuner._work) <= 3
    while tuner._work:
        step(tuner, clock, 4.0)
    assert log == [*(f"begun{part}" for part in range(6)), "call 48 part 0", "call 49 part 0"]


def test_threads_may_submit_work_while_the_tuner_looks_for_it(tuner: Tuner, clock: Clock) -> None:
    # A dictionary must not grow while a thread iterates over it, so the tuner holds its lock meanwhile.
    held: list[bool] = []

    class Watched(dict[Hashable, Work]):
        """A dictionary that notes whether its reader holds the tuner's lock."""

        def items(self):  # type: ignore[no-untyped-def]
            held.append(tuner._changed._is_owned())  # type: ignore[attr-defined]
            return super().items()

        def __iter__(self):  # type: ignore[no-untyped-def]
            held.append(tuner._changed._is_owned())  # type: ignore[attr-defined]
            return super().__iter__()

    tuner._work = Watched()
    tuner.submit("call", parts(clock, [], "a", [1.0]))
    for _ in range(4):
        step(tuner, clock, 4.0)
    assert held
    assert all(held)


def test_nobody_waits_for_a_tuner_that_was_stopped(tuner: Tuner, clock: Clock) -> None:
    tuner.submit("call", parts(clock, [], "a", [1.0]))
    tuner.stop()
    program = threading.Thread(target=lambda: [step(tuner, clock, 4.0) for _ in range(3)], daemon=True)
    program.start()
    program.join(20)
    assert not program.is_alive()


def test_a_program_goes_on_where_no_thread_can_start(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    tuner = Tuner(clock)
    for _ in range(3):
        tuner.submit("call", parts(clock, [], "a", [1.0]))
        step(tuner, clock, 4.0)
    assert not tuner._work

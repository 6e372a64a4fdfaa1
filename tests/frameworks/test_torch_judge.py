"""A converted model compares whole steps with PyTorch's own, and keeps the faster way."""

from __future__ import annotations

import copy
import itertools
import logging
import pickle
from pathlib import Path

import pytest
from needs_torch import mt, torch

from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.schema import STEP_TIME
from mucudnn.measuring.source import StockTiming
from mucudnn.torch import layers, verdicts
from mucudnn.torch.judge import Judge
from mucudnn.torch.stock import TorchTimer

nn = torch.nn
X = torch.zeros(1)
CALL, OTHER = "a call", "another call"


class Clock:
    """A clock that the steps of a test move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def steps(
    judge: Judge,
    clock: Clock,
    count: int,
    ours: float,
    stock: float,
    call: str = CALL,
    choice: bool | None = False,
) -> list[bool]:
    """Run steps of two modules. Return for each whether PyTorch's own convolutions ran."""
    kinds = []
    for _ in range(count):
        wanted = [judge.wants_stock(module, call, X) for module in (1, 2)]
        assert wanted[0] == wanted[1], "one way for the whole step"
        if not wanted[0]:
            judge.note(choice)
            judge.note(choice)
        kinds.append(wanted[0])
        clock.now += stock if wanted[0] else ours
    return kinds


@pytest.mark.parametrize(("ours", "stock", "verdict"), [(1.0, 2.0, "choices"), (2.0, 1.0, "stock")])
def test_a_judge_tells_its_verdict_once_it_has_one(ours: float, stock: float, verdict: str) -> None:
    clock = Clock()
    judge = Judge(clock=clock)
    assert judge.verdict is None, "no step has run"
    steps(judge, clock, 6, ours, stock)
    assert judge.verdict is None
    steps(judge, clock, 10, ours, stock)
    assert judge.verdict == verdict


@pytest.mark.parametrize(("ours", "stock"), [(1.0, 2.0), (2.0, 1.0), (1.0, 1.02), (1.02, 1.0)])
def test_the_faster_way_stays(ours: float, stock: float, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mucudnn")
    clock = Clock()
    judge = Judge(clock=clock)
    first = steps(judge, clock, 30, ours, stock)
    assert True in first
    assert set(steps(judge, clock, 5, ours, stock)) == {stock < ours}
    [line] = caplog.messages
    assert f"{ours * 1e3:.4g} ms with the choices, {stock * 1e3:.4g} ms with PyTorch's own" in line


def test_close_ways_are_compared_in_more_steps() -> None:
    for stock, count in ((2.0, 3), (1.05, 7)):
        clock = Clock()
        kinds = steps(Judge(clock=clock), clock, 30, 1.0, stock)
        assert kinds.count(True) in (count, count + 1)


def test_one_slow_step_does_not_decide() -> None:
    clock = Clock()
    judge = Judge(clock=clock)
    steps(judge, clock, 2, 1.0, 2.0)
    clock.now += 100.0
    steps(judge, clock, 30, 1.0, 2.0)
    assert steps(judge, clock, 1, 1.0, 2.0) == [False]


def test_nothing_is_compared_while_a_call_is_undecided() -> None:
    clock = Clock()
    judge = Judge(clock=clock)
    assert True not in steps(judge, clock, 30, 1.0, 0.5, choice=None)
    assert True in steps(judge, clock, 30, 1.0, 0.5)


def test_a_model_that_runs_pytorchs_own_anyway_compares_nothing() -> None:
    clock = Clock()
    assert True not in steps(Judge(clock=clock), clock, 30, 1.0, 0.5, choice=True)


class Memory:
    """The times of steps by their calls, as a cache keeps them."""

    def __init__(self) -> None:
        self.kept: dict[tuple, dict[str, float]] = {}

    def find(self, calls):  # type: ignore[no-untyped-def]
        return self.kept.get(tuple(calls), {})

    def keep(self, calls, times) -> None:  # type: ignore[no-untyped-def]
        self.kept[tuple(calls)] = times


@pytest.mark.parametrize(("ours", "stock"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_later_process_follows_the_times_of_an_earlier_one(ours: float, stock: float) -> None:
    memory, clock = Memory(), Clock()
    steps(Judge(memory, clock), clock, 30, ours, stock)
    assert memory.kept == {(CALL, CALL): {"choices": ours * 1e3, "stock": stock * 1e3}}
    later = steps(Judge(memory, clock), clock, 30, ours, stock)
    assert later == [False, *[stock < ours] * 29], "the first step tells which steps these are"
    steps(Judge(memory, clock), clock, 30, stock, ours, call=OTHER)
    assert memory.kept.keys() == {(CALL, CALL), (OTHER, OTHER)}, "steps with other calls are compared"


def test_a_verdict_that_hangs_on_one_lucky_step_is_not_kept() -> None:
    memory, clock = Memory(), Clock()
    judge = Judge(memory, clock)
    steps(judge, clock, 2, 1.0, 2.0)
    steps(judge, clock, 1, 0.1, 2.0)
    steps(judge, clock, 30, 5.0, 2.0)
    assert steps(judge, clock, 1, 1.0, 1.0) == [False]
    assert memory.kept == {}


def test_half_of_the_times_are_none() -> None:
    memory, clock = Memory(), Clock()
    memory.kept[CALL, CALL] = {"choices": 1.0}
    assert True in steps(Judge(memory, clock), clock, 30, 1.0, 2.0)


def test_each_shape_has_its_verdict() -> None:
    clock = Clock()
    judge = Judge(clock=clock)
    steps(judge, clock, 30, 1.0, 0.5)
    steps(judge, clock, 30, 0.5, 1.0, call=OTHER)
    assert steps(judge, clock, 1, 1.0, 0.5) == [True]
    assert steps(judge, clock, 1, 0.5, 1.0, call=OTHER) == [False]


def test_a_step_that_calls_the_first_module_twice_is_compared_with_its_like() -> None:
    clock = Clock()
    judge = Judge(clock=clock)
    for _ in range(30):
        for modules, ours, stock in (((1, 2), 1.0, 2.0), ((1,), 0.1, 0.2)):
            wanted = [judge.wants_stock(module, CALL, X) for module in modules]
            if not wanted[0]:
                judge.note(False)
            clock.now += stock if wanted[0] else ours
    assert steps(judge, clock, 4, 1.0, 2.0) == [False] * 4


def test_steps_that_never_repeat_end_without_a_verdict() -> None:
    clock = Clock()
    judge = Judge(clock=clock)
    every = tuple(range(1, 62))
    for number in range(61):
        for module in every if number == 0 else every[:number]:
            if not judge.wants_stock(module, CALL, X):
                judge.note(False)
        clock.now += 1.0
    assert steps(judge, clock, 4, 1.0, 2.0) == [False] * 4


def test_programs_that_want_the_same_bits_every_time_have_no_comparison() -> None:
    clock = Clock()
    torch.use_deterministic_algorithms(True)
    try:
        assert True not in steps(Judge(clock=clock), clock, 30, 1.0, 0.5)
    finally:
        torch.use_deterministic_algorithms(False)


def one_step(model, x) -> None:  # type: ignore[no-untyped-def]
    model(x).sum().backward()


@pytest.fixture
def slow_stock(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a cache of its own, and let PyTorch's convolutions look slow in measurements."""
    monkeypatch.setattr(TorchTimer, "measure", lambda *_, **__: StockTiming(1e9, 0.0, 0))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(4, 4, 3, padding=1), (2, 4, 9, 9)),
        (nn.Conv1d(4, 4, 3, padding="same", dilation=2), (4, 9)),
        (nn.Conv3d(4, 4, 1, padding_mode="circular"), (2, 4, 3, 3, 3)),
    ],
)
def test_a_converted_model_keeps_the_times_of_its_steps_in_the_cache(layer, shape, slow_stock: None) -> None:  # type: ignore[no-untyped-def]
    model, x = nn.Sequential(layer, nn.ReLU()), torch.randn(shape)
    first = mt.convert(copy.deepcopy(model))
    first[0]._mucudnn.judge._clock = itertools.count(1.0).__next__  # all steps take the same time
    for _ in range(40):
        one_step(first, x)
    with Cache.open(default_path()) as cache:
        rows = [row for table, row in cache.rows() if table is STEP_TIME]
    assert {row["way"] for row in rows} == {"choices", "stock"}
    assert len({row["step"] for row in rows}) == 1
    later = mt.convert(copy.deepcopy(model))
    for _ in range(2):
        one_step(later, x)
    [trial] = later[0]._mucudnn.judge._trials.values()
    assert [row["time_ms"] for row in rows] == [1e3, 1e3]
    assert trial.stock_wins
    assert not trial.times
    wider = mt.convert(copy.deepcopy(model), workspace="1MiB")
    for _ in range(2):
        one_step(wider, x)
    [trial] = wider[0]._mucudnn.judge._trials.values()
    assert trial.stock_wins is None, "another limit makes other choices"


def test_nothing_that_only_this_process_has_tells_steps_apart(slow_stock: None) -> None:
    model = mt.convert(nn.Conv2d(4, 4, 3))
    x = torch.randn(2, 4, 9, 9)
    call = layers.call_of(
        x, model.weight, model.bias, None, model._mucudnn, (1, 1), "same", (1, 1), 1, "zeros"
    )
    assert call is not None
    assert " object at " not in verdicts._text(call)


def test_a_cache_that_cannot_be_read_keeps_no_times_and_raises_nothing(
    slow_stock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = mt.convert(nn.Sequential(nn.Conv2d(4, 4, 3))), torch.randn(2, 4, 9, 9)
    one_step(model, x)
    default_path().write_text("no cache")
    for _ in range(40):
        one_step(model, x)
    [trial] = model[0]._mucudnn.judge._trials.values()
    assert trial.stock_wins is not None


@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_finds_its_own_verdict(way) -> None:  # type: ignore[no-untyped-def]
    model = mt.convert(nn.Sequential(nn.Conv2d(1, 1, 1)))
    assert way(model)[0]._mucudnn.judge is not model[0]._mucudnn.judge


def test_plans_and_never_have_no_judge() -> None:
    assert mt.convert(nn.Sequential(nn.Conv2d(1, 1, 1)), tune="never")[0]._mucudnn.judge is None
    assert mt.convert(nn.Sequential(nn.Conv2d(1, 1, 1)))[0]._mucudnn.judge is not None


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_in_steps_given_to_pytorch_only_the_first_module_describes_its_call(
    slow_stock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 1))
    model, x = mt.convert(copy.deepcopy(own)), torch.randn(2, 4, 9, 9)
    judge = model[0]._mucudnn.judge
    judge._clock = itertools.count(1.0).__next__  # all steps take the same time, and PyTorch's own win
    for _ in range(40):
        one_step(model, x)
    assert judge.verdict == "stock"
    described, call_of = [], layers.call_of
    monkeypatch.setattr(layers, "call_of", lambda *given: described.append(given[4]) or call_of(*given))
    assert torch.equal(model(x), own(x))
    assert len(described) == 1
    model(torch.randn(2, 4, 8, 8))
    assert len(described) == 1 + 3, "another shape is not decided"
    model(x)
    traced = torch.jit.trace(model, x)
    assert str(traced.inlined_graph).count("mucudnn::") == 3

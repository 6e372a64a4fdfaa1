"""PyTorch's own convolution, STOCK, is one of the candidates of mucudnn.torch."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from needs_torch import mt, torch

import mucudnn
from mucudnn._native import RunTime, parse_descriptor
from mucudnn.arrays import choosing, dispatch
from mucudnn.arrays.recent import Recent
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.records import FRAMEWORK, STOCK, STOCK_SLICE, SUCCESS, UNLIKELY
from mucudnn.costs.schema import ENUMERATION, MEASUREMENT
from mucudnn.errors import UsageError
from mucudnn.measuring import runners
from mucudnn.measuring.source import StockTiming
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.solver import Configuration, MicroConfiguration
from mucudnn.torch.choosing import answers, decision, trials
from mucudnn.torch.operators import device_times, passes, stock
from mucudnn.torch.operators.operands import prepare_operands

nn = torch.nn
Times = Callable[[str, int, bool], float]


@pytest.fixture(autouse=True)
def _fresh(cache_path: Path) -> None:
    """Give each test a cache of its own, and no decisions of earlier tests."""


@pytest.fixture
def everything_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure every candidate, also the slices of STOCK, which a race may skip."""
    monkeypatch.setattr(runners, "next_candidate", lambda candidates, *_: next(iter(candidates), None))


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the ms that STOCK seems to take in a pass, at a size, whole or sliced.

    A second argument is the bytes of scratch memory that each sample seems to take.
    """

    def set_times(times: Times, scratch: int = 0) -> None:
        def measure(timer: stock.TorchTimer, micro_batch: int, *, is_slice: bool, **_: object) -> StockTiming:
            ms = times(timer._kernel.pass_, micro_batch, is_slice)
            return StockTiming(ms, scratch * micro_batch)

        monkeypatch.setattr(stock.TorchTimer, "measure", measure)

    return set_times


def always(_: str, __: int, ___: bool) -> float:
    return 1e-9


def only_slices(_: str, size: int, is_slice: bool) -> float:
    return 1e-9 * size + 1e-9 if is_slice else 1e9


def problems(layout: str = "contiguous_format") -> list[tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(1)
    made = [
        (nn.Conv1d(4, 6, 3, padding=1), torch.randn(5, 4, 9)),
        (nn.Conv2d(4, 6, 3, stride=2, groups=2), torch.randn(5, 4, 9, 8)),
        (nn.Conv3d(2, 3, 2, padding=1, bias=False), torch.randn(5, 2, 4, 5, 6)),
    ]
    if layout == "channels_last":
        made = [
            (made[1][0].to(memory_format=torch.channels_last),
             made[1][1].to(memory_format=torch.channels_last))
        ]  # fmt: skip
    return made


def gradients(convolution: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    y = convolution(x)
    derivatives = torch.autograd.grad(y.square().sum(), [x, *convolution.parameters()])
    return [y.detach(), *derivatives]


@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_where_all_passes_choose_it_pytorch_runs_the_call_itself(
    timed: Callable[..., None], layout: str
) -> None:
    timed(always)
    for convolution, x in problems(layout):
        wanted = gradients(convolution, x)
        mt.convert(convolution)
        for _ in range(2):  # the second call takes the decision of the first
            results = gradients(convolution, x)
            assert all(torch.equal(a, b) for a, b in zip(results, wanted, strict=True))
            assert [a.stride() for a in results] == [b.stride() for b in wanted]
        node = convolution(x.clone().requires_grad_()).grad_fn
        assert "ConvolutionBackward0" in repr(node)


@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_slices_of_it_give_the_same_results(
    timed: Callable[..., None], layout: str, everything_measured: None
) -> None:
    timed(only_slices)
    for convolution, x in problems(layout):
        wanted = gradients(convolution, x)
        results = gradients(mt.convert(convolution), x)
        torch.testing.assert_close(results, wanted)
        assert [a.stride() for a in results] == [b.stride() for b in wanted]
    assert {p.stock for p in dispatch._prepared.values()} == {(4, 1)}


def test_slices_of_it_follow_samples_of_the_engine() -> None:
    for convolution, x in problems():
        wanted = gradients(convolution, x)
        plan = mt.plan(convolution, x.clone().requires_grad_(), workspace=0)
        mixed = []
        for planned in plan.kernels:
            [whole] = [c for c in planned.desirable if c.workspace == 0][:1]
            own = next(part for part in whole.parts if part.algorithm != STOCK)
            parts = (
                MicroConfiguration(3, own.algorithm, 1.0, 0),
                *(MicroConfiguration(1, STOCK, 1.0, 0) for _ in range(2)),
            )
            mixed.append(PlanKernel(planned.kernel, 1, Configuration(parts), ()))
        results = gradients(mt.convert(convolution, plan=Plan({}, tuple(mixed))), x)
        torch.testing.assert_close(results, wanted)
    assert {(p.own, p.stock) for p in dispatch._prepared.values() if p.plan} == {(3, (1, 1))}


def test_a_call_without_gradients_takes_it_too(timed: Callable[..., None]) -> None:
    timed(always)
    x, w, bias = torch.randn(4, 3, 8, 8), torch.randn(5, 3, 3, 3), torch.randn(5)
    assert torch.equal(mt.conv2d(x, w, bias), nn.functional.conv2d(x, w, bias))
    assert {p.stock for p in dispatch._prepared.values()} == {(4,)}


def test_second_derivatives_follow_it(timed: Callable[..., None]) -> None:
    timed(always)
    x, w = (torch.randn(1, 1, 3, 3).double().requires_grad_() for _ in range(2))
    assert torch.autograd.gradgradcheck(lambda x, w: mt.conv2d(x, w, padding=2), (x, w))


def test_compiled_and_transformed_calls_take_it_within_the_operators(timed: Callable[..., None]) -> None:
    timed(always)
    convolution, x = problems()[1]
    wanted = convolution(x)
    mt.convert(convolution)
    torch.testing.assert_close(torch.compile(convolution, backend="eager")(x), wanted)
    torch.testing.assert_close(torch.func.vmap(convolution)(x.unsqueeze(0))[0], wanted)


def test_its_measurements_are_kept_with_version_scratch_memory_and_sizes(everything_measured: None) -> None:
    x, w = torch.randn(4, 16, 14, 14), torch.randn(16, 16, 3, 3)
    mt.conv2d(x, w, padding=1)
    with Cache.open(default_path()) as cache:
        [machine] = [m for m in cache.machines() if m.engine == FRAMEWORK]
        [prepared] = dispatch._prepared.values()
        rows = cache.measurements(machine, Kernel(prepared.problem, "forward"))
    assert f"PyTorch {torch.__version__}, oneDNN" in machine.library
    assert machine.threads == torch.get_num_threads()
    assert [(r.micro_batch, r.algorithm) for r in rows] == [
        (1, STOCK_SLICE), (2, STOCK_SLICE), (4, STOCK),
    ]  # fmt: skip
    assert all(r.time_ms and r.time_ms > 0 for r in rows)
    # A slice's result is scratch memory, because it is copied into place.
    sample = 16 * 14 * 14 * 4
    assert [r.workspace >= r.micro_batch * sample for r in rows[:2]] == [True, True]


def test_the_scratch_memory_is_the_peak_less_the_result() -> None:
    def run() -> torch.Tensor:
        scratch = torch.empty(10_000, dtype=torch.uint8)
        more = torch.empty(5_000, dtype=torch.uint8)
        del scratch, more
        return torch.empty(0, dtype=torch.uint8)

    assert stock.scratch_of("cpu", run) in range(15_000, 15_200)
    with torch.profiler.profile(profile_memory=True):  # the caller's own does not disturb it
        assert stock.scratch_of("cpu", run) in range(15_000, 15_200)


def test_in_a_race_a_long_run_is_made_once_and_a_disturbed_one_takes_no_longer_than_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = parse_descriptor("mb4_ic4ih9_oc4_kh3")[0]
    tensors = stock.random_tensors("cpu", problem, 4)
    timer = stock.TorchTimer("cpu", Kernel(problem, "forward"), tensors)

    def measured(*times: float, budget_ms: float | None) -> float:
        left = map(RunTime, times, times)
        monkeypatch.setattr(device_times, "timed", lambda _, run: (run(), next(left))[1])
        return timer.measure(4, is_slice=False, budget_ms=budget_ms).time_ms

    assert measured(150.0, budget_ms=1.0) == 150.0
    assert measured(9.0, 5.0, budget_ms=1.0) == 5.0
    assert measured(9.0, 1.0, 0.5, 0.6, budget_ms=0.3) == 0.6, "the threads are awake after two milliseconds"
    assert measured(9.0, 70.0, budget_ms=1.0) == 9.0
    assert measured(9.0, 70.0, 70.0, 70.0, budget_ms=None) == 70.0, "a thorough measurement needs no bound"


def test_on_several_threads_of_a_busy_machine_the_time_is_estimated_from_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Take the CPU time of one thread, because PyTorch's threads spin while they wait for each other."""
    problem = parse_descriptor("mb4_ic4ih9_oc4_kh3")[0]
    timer = stock.TorchTimer("cpu", Kernel(problem, "forward"), stock.random_tensors("cpu", problem, 4))
    walls: list[float] = []

    def timed(device: str, run: Callable[[], object]) -> RunTime:
        run()
        threads = torch.get_num_threads()
        if threads == 1:
            return RunTime(9.0, 8.0)
        walls.append(30.0 + len(walls))
        return RunTime(walls[-1], 20.0, threads)

    monkeypatch.setattr(device_times, "timed", timed)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        patience = device_times.engine_of("cpu").patience
        patience.note(False, 0.0)
        wait_ms = patience.ms
        timing = timer.measure(4, is_slice=False, budget_ms=1.0)
        assert torch.get_num_threads() == 2
        assert patience.ms == wait_ms / 2, "after waiting without success the next wait is shorter"
        patience.note(False, 0.0)
    finally:
        torch.set_num_threads(before)
    assert (timing.time_ms, timing.is_busy) == (4.0, True)
    assert sum(walls) >= wait_ms


def test_flags_that_change_its_kernels_change_its_identity() -> None:
    usual = stock.source_of("cpu")
    torch._C._set_mkldnn_enabled(False)
    try:
        assert stock.source_of("cpu").machine.identity != usual.machine.identity
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert stock.source_of("cpu") is usual
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert stock.source_of("cpu").machine.identity != usual.machine.identity
    finally:
        torch.set_num_threads(threads)


def test_measuring_leaves_the_callers_state_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    packed: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
        mt.convert(nn.Conv2d(3, 4, 3))(torch.randn(4, 3, 6, 6, generator=torch.Generator()))
    torch.manual_seed(1)
    assert len(packed) <= 3
    nn.Conv2d(3, 4, 3)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    nn.Conv2d(3, 4, 3)
    assert torch.equal(torch.get_rng_state(), after)


def test_a_type_that_pytorch_cannot_run_leaves_the_engine_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> StockTiming:
        raise RuntimeError("not implemented for this type")

    monkeypatch.setattr(stock.TorchTimer, "measure", fail)
    x, w = torch.randn(4, 3, 8, 8), torch.randn(5, 3, 3, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(mt.conv2d(x, w), nn.functional.conv2d(x, w), atol=1e-4, rtol=1e-4)
    assert {p.stock for p in dispatch._prepared.values()} == {()}


def test_its_scratch_counts_against_the_limit(timed: Callable[..., None]) -> None:
    timed(lambda _, size, __: 1e-9 * size, 1000)
    x, w = torch.randn(4, 3, 8, 8), torch.randn(5, 3, 3, 3)
    torch.testing.assert_close(mt.conv2d(x, w, workspace=2500), nn.functional.conv2d(x, w))
    [ready] = dispatch._prepared.values()
    assert max(ready.stock) <= 2
    assert ready.undivided_stock is None


def test_a_plan_says_that_it_is_the_choice_and_by_which_version(timed: Callable[..., None]) -> None:
    timed(always)
    convolution, x = problems()[1]
    plan = mt.plan(convolution, x, thorough=True)
    assert {part.algorithm for k in plan.kernels for part in k.chosen.parts} == {STOCK}
    assert plan.header[FRAMEWORK] == stock.source_of("cpu").machine.library
    wanted = convolution(x)
    torch.testing.assert_close(mt.convert(convolution, plan=Plan.parse(str(plan)))(x), wanted)


def test_a_plan_of_another_version_is_not_followed(timed: Callable[..., None]) -> None:
    timed(always)
    convolution, x = problems()[1]
    plan = mt.plan(convolution, x, thorough=True)
    other = Plan({**plan.header, FRAMEWORK: "PyTorch 1.0"}, plan.kernels)
    with torch.no_grad(), pytest.raises(UsageError, match=r"measured with 'PyTorch 1\.0'"):
        mt.conv2d(x, convolution.weight, None, 2, groups=2, plan=other)


def test_functions_without_pytorch_refuse_a_plan_with_it_by_name(timed: Callable[..., None]) -> None:
    timed(always)
    x, w = torch.randn(4, 3, 8, 8), torch.randn(5, 3, 3, 3)
    convolution = nn.Conv2d(3, 5, 3, bias=False)
    plan = mt.plan(convolution, x, thorough=True)
    with pytest.raises(UsageError, match="STOCK, which PyTorch itself runs"):
        mucudnn.convolution_forward(x.numpy(), w.numpy(), plan=plan)


Predict = Callable[[float, float], None]


@pytest.fixture
def predicted(timed: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Predict:
    """Return a function that sets the ms that the engine and STOCK seem to take for a pass.

    The engine's configuration stays the choice of each pass.
    """

    def predict(ours_ms: float, stock_ms: float) -> None:
        monkeypatch.setattr(dispatch.Prepared, "predicted_ms", ours_ms)
        timed(lambda pass_, size, is_slice: 1e9 if is_slice else stock_ms)
        monkeypatch.setattr(choosing, "choose_within", _without_stock(choosing.choose_within))

    return predict


def wins() -> bool:
    """Return whether the only decision so far is against PyTorch's own convolution."""
    [answer] = answers._answers.values()
    return answer.gain > 0


@pytest.mark.parametrize(("ours_ms", "is_faster"), [(90.0, True), (99.0, False)])
def test_close_predictions_are_settled_by_running_both(
    predicted: Predict, monkeypatch: pytest.MonkeyPatch, ours_ms: float, is_faster: bool
) -> None:
    races: list[int] = []
    own_ms = [ours_ms]
    predicted(90.0, 100.0)

    def race(*_: object) -> dict[str, float]:
        races.append(1)
        return {"stock": 100.0, "choices": own_ms[-1]}

    monkeypatch.setattr(trials, "time_ways", race)
    convolution, x = problems()[1]
    with torch.no_grad():
        mt.convert(convolution)(x)
        assert len(races) == 1
        assert wins() == is_faster
        monkeypatch.setattr(answers, "_answers", Recent(16))
        mt.convert(convolution)(x)
        assert len(races) == 1  # the cache has the times
        monkeypatch.setattr(answers, "_answers", Recent(16))
        monkeypatch.setattr(trials, "of_process", trials.CallTrials(lambda: 1e6))
        own_ms.append(189.0 - ours_ms)
        mt.convert(convolution)(x)
    assert len(races) == 2, "another process checks the times"
    assert wins() != is_faster


def test_a_spent_budget_leaves_close_predictions_as_they_are(
    predicted: Predict, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicted(90.0, 100.0)
    monkeypatch.setattr(trials, "time_ways", lambda *_: {"stock": 1.0, "choices": 1.0})
    convolution, x = problems()[1]
    with torch.no_grad():
        mt.convert(convolution, budget="0s")(x)
        assert wins(), "nothing compares them"
        monkeypatch.setattr(answers, "_answers", Recent(16))
        mt.convert(convolution, budget="none")(x)
    assert not wins(), "a later run does"


@pytest.mark.parametrize("needs_gradients", [False, True])
@pytest.mark.parametrize(("slower", "is_faster"), [(0.9, False), (1.3, True)])
def test_a_gain_below_the_cost_of_a_call_is_ignored(
    predicted: Predict, monkeypatch: pytest.MonkeyPatch, needs_gradients: bool, slower: float, is_faster: bool
) -> None:
    passes, call_ms = (3, decision._CALL_WITH_GRADIENTS_MS) if needs_gradients else (1, decision._CALL_MS)
    cost_ms = call_ms + passes * decision.OPERATOR_MS
    predicted(1e-3, slower * cost_ms / passes)
    monkeypatch.setattr(trials, "time_ways", lambda *_: {"stock": 1.0, "choices": 0.01})
    model, x = nn.Conv2d(4, 4, 3), torch.randn(4, 4, 9, 9, requires_grad=needs_gradients)
    with torch.set_grad_enabled(needs_gradients):
        mt.convert(model)(x)
    assert wins() == is_faster


def _without_stock(decide: Callable[..., object]) -> Callable[..., object]:
    def decided(costs: object, *more: object) -> object:
        rows = {
            k: [m for m in measured if m.algorithm != STOCK] for k, measured in costs.measurements.items()
        }
        return decide(type(costs)(costs.machine, rows), *more)

    return decided


def test_a_decision_about_all_passes_opens_the_cache_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, of_user = [], Cache.of_user
    monkeypatch.setattr(Cache, "of_user", lambda *a, **k: opened.append(a) or of_user(*a, **k))
    model, x = nn.Conv2d(4, 4, 3), torch.randn(4, 4, 9, 9, requires_grad=True)
    mt.convert(model)(x).sum().backward()
    assert len(opened) == 1
    with Cache.open(default_path()) as cache:
        assert {row["pass"] for _, row in cache.rows()} == set(PASSES)


def test_waiting_for_a_decision_records_no_failures_and_transforms_no_single_tap() -> None:
    x = torch.randn(8, 16, 24, 24, requires_grad=True)
    for taps in (1, 3):
        mt.convert(nn.Conv2d(16, 16, taps))(x).sum().backward()
    with Cache.open(default_path()) as cache:
        rows = list(cache.rows())
    measured = [row for table, row in rows if table is MEASUREMENT]
    listed = {(row["problem"], row["candidates"]) for table, row in rows if table is ENUMERATION}
    assert SUCCESS in {row["status"] for row in measured} <= {SUCCESS, UNLIKELY}
    assert any("FFT" in text and "kh1kw1" in problem for problem, text in listed)
    transformed = {row["problem"] for row in measured if "FFT" in row["algorithm"]}
    assert all("kh3kw3" in problem for problem in transformed)


def test_a_race_runs_the_call_divided_and_undivided() -> None:
    convolution, x = problems()[1]
    operands = prepare_operands(
        2, x, convolution.weight, convolution.bias, 2, 0, 1, 2, workspace=None, plan=None, fallback=True
    )
    key = answers.key_of(x.requires_grad_(), convolution.weight, convolution.bias, None, 2, 2, 0, 1, 2)
    assert key is not None
    assert key.needed == (True, True, True)
    with torch.no_grad():
        calls = operands.calls(answers.passes_of(key)).items()
        ready = {pass_: passes.ready_of(call, operands.options, 0) for pass_, call in calls}
        times = trials.time_ways("cpu", decision._ways(key, operands, ready))
    assert times.keys() in (set(), {"stock", "choices"}), "a busy machine gives no times"
    assert all(ms > 0 for ms in times.values())

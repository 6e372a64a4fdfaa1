"""The choice for an array call: decided once, kept in the cache, within the limit, or taken from a plan."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

import mucudnn
from mucudnn._native import Engine
from mucudnn.arrays import choosing, devices, dispatch, views
from mucudnn.arrays.call import PassCall, limit_of
from mucudnn.arrays.devices import ArrayDevice
from mucudnn.arrays.dispatch import prepared
from mucudnn.arrays.recent import Recent
from mucudnn.costs.cache import Cache
from mucudnn.errors import NothingFitsError, UsageError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import optimize
from mucudnn.plans.plan import Plan, PlanKernel, write_plan
from mucudnn.plans.result import to_plan
from mucudnn.problems import shapes
from mucudnn.problems.kernels import Kernel
from mucudnn.sizes import format_size
from mucudnn.solver import ChannelGroups, Configuration, MicroConfiguration

pytestmark = pytest.mark.usefixtures("cache_path")

X = np.random.default_rng(1).random((8, 8, 14, 14), np.float32)
W = np.random.default_rng(2).random((8, 8, 3, 3), np.float32)
CALL = PassCall("forward", "cpu", "f32", "nchw", X.shape, W.shape, None, 1, 1, 1, 1, None)
PROBLEM = shapes.problem_of("f32", "nchw", X.shape, W.shape, 1, 1, 1, 1)
KERNEL = Kernel(PROBLEM, "forward")
WHOLE = Configuration((MicroConfiguration(8, "GEMM", 2.0, 8 * 8 * 72 * 196 * 4),))
HALVES = Configuration((MicroConfiguration(4, "IMPLICIT_GEMM", 2.0, 0),) * 2)
PLAN = Plan({}, (PlanKernel(KERNEL, 1, WHOLE, (HALVES, WHOLE)),))


def measured_algorithms(path: Path) -> dict[int, set[str]]:
    with Cache.read_only(path) as cache:
        (machine,) = cache.machines()
        algorithms: dict[int, set[str]] = {}
        for row in cache.measurements(machine, KERNEL):
            algorithms.setdefault(row.micro_batch, set()).add(row.algorithm)
        return algorithms


def computes_everything(choice: Configuration | ChannelGroups) -> bool:
    """Return whether the parts add to all samples and all channels of KERNEL's output."""
    if isinstance(choice, ChannelGroups):
        each = [computes_everything(group.configuration) for group in choice.parts]
        return choice.channels == W.shape[0] and all(each)
    return choice.mini_batch == X.shape[0]


@pytest.fixture
def thorough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure all sizes and algorithms: those that a race measures depend on the times that it finds."""
    monkeypatch.setattr(choosing, "_runner", lambda _: Exhaustive())


@pytest.mark.usefixtures("thorough")
def test_a_kernel_is_measured_once_and_then_taken_from_the_process(
    monkeypatch: pytest.MonkeyPatch, cache_path: Path
) -> None:
    first = prepared(CALL)
    assert set(measured_algorithms(cache_path)) == {1, 2, 4, 8}
    monkeypatch.setattr(choosing, "benchmark", None)
    assert prepared(CALL) is first


def test_another_process_asks_for_no_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    # One algorithm needs more than this limit even for one sample, so tiles are tried too.
    limited = CALL._replace(workspace="100KiB")
    first = prepared(limited)
    monkeypatch.setattr(dispatch, "_prepared", Recent(4096))
    monkeypatch.setattr(Engine, "enumerate", None)
    assert prepared(limited).configuration == first.configuration


@pytest.mark.parametrize("workspace", [0, 70_000, "100KiB", "none", 2**40])
def test_the_chosen_algorithm_stays_within_the_limit(workspace: int | str) -> None:
    limit = limit_of(workspace)
    ready = prepared(CALL._replace(workspace=workspace))
    assert ready._workspace <= (2**63 if limit is None else limit)
    assert computes_everything(ready.configuration)


@pytest.mark.usefixtures("thorough")
def test_algorithms_beyond_the_limit_are_not_measured(cache_path: Path) -> None:
    def measured() -> set[str]:
        return set().union(*measured_algorithms(cache_path).values())

    prepared(CALL._replace(workspace=0))
    assert measured() >= {"IMPLICIT_GEMM"}
    assert "GEMM" not in measured()
    prepared(CALL._replace(workspace="none"))
    assert "GEMM" in measured()


def test_the_limit_defaults_to_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_WORKSPACE_LIMIT", "0")
    assert prepared(CALL)._workspace == 0
    monkeypatch.setenv("MUCUDNN_WORKSPACE_LIMIT", "lots")
    with pytest.raises(UsageError, match="MUCUDNN_WORKSPACE_LIMIT: 'lots'"):
        prepared(CALL)


def test_a_plan_decides_what_runs_and_nothing_is_measured(tmp_path: Path, cache_path: Path) -> None:
    path = tmp_path / "a.plan"
    write_plan(PLAN, path)
    for plan in (PLAN, path, str(path)):
        assert prepared(CALL, plan).configuration == WHOLE
    assert not cache_path.exists()


def test_within_a_workspace_a_plan_gives_its_fastest_that_fits() -> None:
    assert prepared(CALL._replace(workspace="1KiB"), PLAN).configuration == HALVES
    costly = Plan({}, (PlanKernel(KERNEL, 1, WHOLE, (WHOLE,)),))
    with pytest.raises(NothingFitsError, match=r"nothing in the plan for forward of .* fits 1 KiB"):
        prepared(CALL._replace(workspace="1KiB"), costly)


def test_a_plan_for_other_shapes_names_both() -> None:
    with pytest.raises(ValueError, match=r"the plan has no forward of .*mb4.*: of this pass it has .*mb8"):
        mucudnn.convolution_forward(X[:4], W, padding=1, plan=PLAN)
    with pytest.raises(UsageError, match="of this pass it has none"):
        mucudnn.convolution_backward_data(X, W, X.shape, padding=1, plan=PLAN)


def test_a_plan_for_another_engine_says_so() -> None:
    alien = Configuration((MicroConfiguration(8, "eng28_k2=1", 1.0, 0),))
    plan = Plan({}, (PlanKernel(KERNEL, 1, alien, (alien,)),))
    with pytest.raises(UsageError, match=r"made for another engine: .*eng28"):
        prepared(CALL, plan)


def header_here(engine: Engine) -> dict[str, str]:
    return {"engine": engine.kind, "device": engine.device, "library": engine.library, "threads": "1"}


@pytest.mark.parametrize("name", ["engine", "device", "library"])
def test_a_plan_of_another_machine_is_refused_with_the_difference(name: str, engine: Engine) -> None:
    there = header_here(engine)
    assert prepared(CALL, Plan(there, PLAN.kernels)).configuration == WHOLE
    with pytest.raises(
        UsageError, match=f"cannot be followed here: the plan's {name} is 'an abacus', this one is '"
    ):
        prepared(CALL, Plan({**there, name: "an abacus"}, PLAN.kernels))


def test_a_plan_of_other_threads_is_followed(engine: Engine) -> None:
    there = {**header_here(engine), "threads": "3"}
    assert prepared(CALL, Plan(there, PLAN.kernels)).configuration == WHOLE


def test_a_plan_that_states_too_little_workspace_is_refused(engine: Engine) -> None:
    false = Configuration((MicroConfiguration(8, "GEMM", 1.0, 0),))
    kernels = (PlanKernel(KERNEL, 1, false, (false,)),)
    [true] = [c.workspace for c in engine.enumerate(KERNEL) if c.algorithm == "GEMM"]
    needs = f"needs {format_size(true)} of workspace, but the"
    with pytest.raises(UsageError, match=f"{needs} limit is 1 KiB"):
        prepared(CALL._replace(workspace="1KiB"), Plan({}, kernels))
    with pytest.raises(UsageError, match=f"{needs} plan states 0 B"):
        prepared(CALL, Plan(header_here(engine), kernels))
    assert prepared(CALL._replace(workspace=true), Plan({}, kernels)).configuration == false


@pytest.mark.parametrize("data_type", ["f32", "f16"])
@pytest.mark.parametrize("pass_", ["forward", "backward_data", "backward_filter"])
def test_a_plan_of_optimize_states_enough_workspace(pass_: str, data_type: str, engine: Engine) -> None:
    kernel = Kernel(PROBLEM.replace(data_type=data_type), pass_)
    call = CALL._replace(pass_=pass_, data_type=data_type)
    with Cache.in_memory(Path("none")) as cache:
        for limit in (2**16, 2**20, 2**24):
            bench = Bench(engine, cache, Listener(), Exhaustive())
            result = optimize(bench, [kernel], "power_of_two", Limits(workspace=limit), run=False)
            plan = to_plan(result)
            assert prepared(call._replace(workspace=limit), plan).configuration == plan.kernels[0].chosen
            assert prepared(call, plan)._workspace <= plan.kernels[0].chosen.workspace


def test_plans_at_the_same_address_are_not_mistaken_for_each_other() -> None:
    for parts in (HALVES, WHOLE, HALVES, WHOLE):
        assert prepared(CALL, Plan({}, (PlanKernel(KERNEL, 1, parts, ()),))).configuration == parts


def test_concurrent_calls_do_not_disturb_each_other() -> None:
    inputs = [X + step for step in range(16)]
    expected = [mucudnn.convolution_forward(x, W, padding=1, workspace="none") for x in inputs]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            results = pool.map(
                lambda x: mucudnn.convolution_forward(x, W, padding=1, workspace="none"), inputs
            )
            for result, wanted in zip(results, expected, strict=True):
                np.testing.assert_array_equal(result, wanted)


def test_a_kernel_that_several_threads_need_first_is_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Mock(side_effect=benchmark)
    monkeypatch.setattr(choosing, "benchmark", counted)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(prepared, [CALL] * 8))
    assert counted.call_count == 1
    assert all(result is results[0] for result in results)


@pytest.fixture
def four_remembered_calls(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_prepared", Recent(4))


@pytest.mark.usefixtures("four_remembered_calls")
def test_an_endless_stream_of_calls_keeps_the_latest_and_those_in_use() -> None:
    in_use = prepared(CALL, PLAN)
    for limit in range(10_000_000, 10_000_050):
        assert prepared(CALL._replace(workspace=limit), PLAN).configuration == WHOLE
        assert prepared(CALL, PLAN) is in_use
        assert len(dispatch._prepared.everything()) <= 8


@pytest.mark.usefixtures("four_remembered_calls")
def test_a_forgotten_call_is_decided_again_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine some measurements would be made again, and their new times may lead to another choice.
    monkeypatch.setattr("mucudnn.costs.cache._is_due", lambda _: False)
    limits = [0, 70_000, "none"] * 2
    calls = [CALL._replace(workspace=limit, x=(size, *X.shape[1:])) for size in (8, 4, 2) for limit in limits]
    for _ in range(2):  # the first time, close candidates of one limit are measured again for another one
        first = [prepared(call).configuration for call in calls]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            assert [ready.configuration for ready in pool.map(prepared, calls)] == first


def test_nothing_is_decided_or_run_on_a_stream_that_a_cuda_graph_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Mock(kind="cudnn", is_capturing=lambda stream: stream == 7)
    monkeypatch.setattr(devices, "device_named", lambda *_: ArrayDevice(engine))
    with pytest.raises(UsageError, match="a CUDA graph is being captured"):
        prepared(CALL._replace(device="cuda:0"), PLAN, stream=7)
    engine.prepare.assert_not_called()
    prepared(CALL._replace(device="cuda:0"), PLAN, stream=1)
    engine.prepare.assert_called_once()


def test_on_a_gpu_the_library_of_the_arrays_lends_the_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, run, x = Mock(kind="cudnn"), Mock(), object()
    monkeypatch.setattr(views, "allocate_scratch", lambda like, size: (4096, size) if like is x else None)
    ArrayDevice(engine).run(run, 100, 7, x)
    engine.borrow.assert_called_once_with(4096, 100)
    run.assert_called_once_with(engine.borrow.return_value)
    engine.allocate.assert_not_called()
    ArrayDevice(engine).run(run, 100, 7, object())
    engine.allocate.assert_called_once_with(100)


def test_without_memory_of_that_library_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "allocate_scratch", Mock(side_effect=MemoryError))
    with pytest.raises(NothingFitsError, match="no memory for a workspace of 100 B"):
        ArrayDevice(Mock(kind="cudnn")).run(Mock(), 100, 7, object())


@pytest.mark.parametrize("size", [5, 17, 64])
def test_slices_that_need_memory_for_their_sum_do_not_hide_the_ones_that_need_none(size: int) -> None:
    shapes = (size, 1, 1, 1), (1, 1, 1, 1), (size, 1, 1, 1)
    call = PassCall("backward_filter", "cpu", "bf16", "nchw", *shapes, 1, 0, 1, 1, 0)
    assert prepared(call).workspace == 0

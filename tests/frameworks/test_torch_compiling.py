"""Converted models under `torch.compile` with Inductor: who computes the convolutions, and what results."""

import copy
import logging
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import programs
import pytest
from dimensions import layer_class
from needs_torch import mt, torch
from torch import nn

from mucudnn.arrays import dispatch
from mucudnn.arrays.recent import Recent
from mucudnn.errors import MucudnnWarning
from mucudnn.problems.kernels import PASSES
from mucudnn.torch.compiling import comparison, graph_pass, inductor, operators, tracing, unknown_sizes
from mucudnn.torch.compiling.operators import CompiledCall, EngineChoice
from mucudnn.torch.operators import passes

pytestmark = [
    pytest.mark.usefixtures("fresh_compiler"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec:FutureWarning"),  # Inductor gives it
]
inductor_config = pytest.importorskip("torch._inductor.config")


def engine(call: CompiledCall, *_: Any) -> EngineChoice | None:
    """Return one of the engine's ways to run a call, which differs with the call."""
    ways = operators.choices(call)
    return ways[sum(call.w) % len(ways)]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Let the engine win every convolution. Return how often it has run each pass."""
    counts: Counter[str] = Counter()
    run = operators.run

    def counted(call: CompiledCall, *arguments: Any) -> torch.Tensor:
        counts[call.pass_] += 1
        return run(call, *arguments)

    monkeypatch.setattr(graph_pass, "choose", engine)
    monkeypatch.setattr(operators, "run", counted)
    return counts


def network(dims: int = 2) -> nn.Sequential:
    """Return a network of convolutions with groups, a stride, another padding mode, and batch norm."""
    torch.manual_seed(0)
    conv, norm = layer_class("Conv", dims), layer_class("BatchNorm", dims)
    mode = "zeros" if dims == 3 else "reflect"
    return nn.Sequential(
        conv(3, 8, 3, padding=1, bias=False), norm(8), nn.ReLU(),
        conv(8, 8, 3, stride=2, groups=2), nn.ReLU(),
        conv(8, 8, 3, padding=1, padding_mode=mode), nn.Sigmoid(), conv(8, 4, 1),
    )  # fmt: skip


def image(dims: int = 2) -> torch.Tensor:
    return torch.rand((4, 3, *(12,) * dims), generator=torch.Generator().manual_seed(1))


def assert_as_exact_as_stock(result: torch.Tensor, stock: torch.Tensor, exact: torch.Tensor) -> None:
    """Assert that the error against fp64 is at most four times PyTorch's: Winograd amplifies rounding."""
    rounding = 4 * torch.finfo(result.dtype).eps * exact.norm()
    assert (result.double() - exact).norm() <= 4 * (stock.double() - exact).norm() + rounding


def assert_inference_is_exact(
    model: nn.Module, compiled: Any, *inputs: torch.Tensor, freezing: bool = True
) -> None:
    """Run a compiled model without gradients, and compare its results with fp64."""
    with torch.no_grad(), inductor_config.patch(freezing=freezing):
        for x in inputs:
            assert_as_exact_as_stock(compiled(x), model(x), copy.deepcopy(model).double()(x.double()))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    grads = [parameter.grad for parameter in model.parameters()]
    assert all(grad is not None for grad in grads)
    return grads  # type: ignore[return-value]


@pytest.mark.parametrize("dims", [2, 3])
def test_frozen_inference_folds_batch_norms_and_runs_the_engine(dims: int, runs: Counter[str]) -> None:
    model = network(dims).eval()
    assert_inference_is_exact(model, torch.compile(mt.convert(copy.deepcopy(model))), image(dims))
    assert runs == {"forward": 4}


@pytest.mark.parametrize("freezing", [False, True])
def test_the_engine_adds_the_bias(
    freezing: bool, runs: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, bias=False)).eval()
    biases, run = list[torch.Tensor | None](), passes.run

    def noted(pass_: str, x: torch.Tensor, w: torch.Tensor, bias: Any, *rest: Any) -> torch.Tensor:
        biases.append(bias)
        return run(pass_, x, w, bias, *rest)

    monkeypatch.setattr(passes, "run", noted)
    compiled = torch.compile(mt.convert(copy.deepcopy(model)))
    assert_inference_is_exact(model, compiled, image(), freezing=freezing)
    assert runs == {"forward": 2}
    first, second = biases
    assert first is not None
    assert torch.equal(first, model[0].bias)
    assert second is None


def test_frozen_filters_are_kept_once(runs: Counter[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_pass, "choose", lambda *_: EngineChoice(4, "WINOGRAD_NONFUSED"))
    made = list[int]()
    keep = dispatch.Prepared.keep_filter
    monkeypatch.setattr(dispatch.Prepared, "keep_filter", lambda *args: made.append(1) or keep(*args))
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3, bias=False)).eval(), image()
    with torch.no_grad(), inductor_config.patch(freezing=True):
        compiled = torch.compile(mt.convert(copy.deepcopy(model)))
        results = [compiled(x) for _ in range(3)]
        for result in results:
            assert torch.equal(result, results[0])
        torch.testing.assert_close(results[0], model(x), rtol=1e-4, atol=1e-5)
    assert runs == {"forward": 6}
    assert len(made) == 2


@pytest.mark.parametrize(("dims", "won"), [(3, PASSES), (2, ("backward_filter",))], ids=str)
def test_a_training_step_runs_the_passes_in_the_engine_that_it_computes_faster(
    dims: int, won: tuple[str, ...], runs: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_pass, "choose", lambda call, *_: engine(call) if call.pass_ in won else None)
    model, x = network(dims), image(dims)
    converted, exact = mt.convert(copy.deepcopy(model)), copy.deepcopy(model).double()
    results = [
        run(x)
        for run, x in ((torch.compile(converted), x), (model, x), (exact, x.double()))
    ]  # fmt: skip
    for result in results:
        result.square().mean().backward()
    assert_as_exact_as_stock(*results)
    for triple in zip(*map(gradients, (converted, model, exact)), strict=True):
        assert_as_exact_as_stock(*triple)
    assert runs == {pass_: 3 if pass_ == "backward_data" else 4 for pass_ in won}


def test_channels_last_stays_channels_last(runs: Counter[str]) -> None:
    model = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    x = image().to(memory_format=torch.channels_last)
    result = torch.compile(mt.convert(copy.deepcopy(model)))(x)
    stock = model(x)
    assert result.stride() == stock.stride()
    torch.testing.assert_close(result, stock)
    assert runs["forward"] == 1


def test_autocast_swaps_convolutions_of_its_type(runs: Counter[str]) -> None:
    model, x = nn.Conv2d(3, 8, 3), image()
    converted = mt.convert(copy.deepcopy(model))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        result, stock = torch.compile(converted)(x), model(x)
    assert result.dtype == torch.bfloat16
    with torch.no_grad():
        rounded = copy.deepcopy(model).to(torch.bfloat16).double()
        assert_as_exact_as_stock(result, stock, rounded(x.bfloat16().double()))
    assert runs["forward"] == 1


def test_a_model_that_is_not_converted_stays_inductors(
    runs: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    with inductor_config.patch(fx_graph_cache=True):
        x = image()
        torch.compile(mt.convert(network()))(x)
        runs.clear()
        torch.compile(network())(x)
    assert not runs


def test_only_the_converted_half_of_a_graph_is_swapped(runs: Counter[str]) -> None:
    model = nn.Sequential(mt.convert(nn.Conv2d(3, 4, 3)), nn.Conv2d(4, 4, 3))
    torch.compile(model)(image())
    assert runs == {"forward": 1}


def test_convolutions_that_inductor_computes_faster_stay_inductors(
    runs: Counter[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graph_pass, "choose", lambda *_: None)
    with caplog.at_level(logging.INFO, "mucudnn"):
        torch.compile(mt.convert(network()))(image())
    assert not runs
    assert "4 forward convolutions left to Inductor" in caplog.text


class Residual(nn.Module):
    """A block whose second result is added to its input, with a sum that has a tensor of another shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x + self.second(torch.relu(self.first(x)))).relu()
        third: torch.Tensor = self.third(y) + y.mean((2, 3), keepdim=True)
        return third


def test_a_sum_that_inductor_fuses_is_measured_as_part_of_its_convolution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = list[comparison.Packed]()
    monkeypatch.setattr(graph_pass, "choose", lambda _, own: packed.append(own))
    torch.manual_seed(0)
    model, x, before = Residual().eval(), torch.rand(2, 8, 6, 6), torch.rand(2, 8, 6, 6)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        torch.compile(mt.convert(copy.deepcopy(model)))(x)
        assert [own.adds for own in packed] == [False, True, False]
        for layer, own in zip((model.first, model.second), packed, strict=False):
            sum_ = before.clone(memory_format=torch.channels_last) if own.adds else None
            torch.testing.assert_close(
                own.run(x, sum_), (layer(x) + (before if own.adds else 0)).relu(), rtol=1e-4, atol=1e-5
            )
            call = CompiledCall(
                "forward", x.shape, layer.weight.shape, x.dtype, *((1, 1),) * 3, 1, True, "1MiB", True
            )
            assert all(ms > 0 for ms in comparison._measure(call, own).values())


class ChannelNorm(nn.LayerNorm):
    """A layer norm over the channels of an image."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("norm", "is_channels_last"), [(nn.GroupNorm(4, 8), False), (ChannelNorm(8), True), (nn.ReLU(), True)]
)
def test_images_with_a_group_norm_stay_channels_first(
    norm: nn.Module, is_channels_last: bool, runs: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, packed = list[CompiledCall](), list[comparison.Packed]()

    def noted(call: CompiledCall, own: comparison.Packed) -> EngineChoice | None:
        calls.append(call)
        packed.append(own)
        return engine(call)

    monkeypatch.setattr(graph_pass, "choose", noted)
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.SiLU(), nn.Conv2d(8, 8, 3)).eval(), image()
    with torch.no_grad(), inductor_config.patch(freezing=True):
        result = torch.compile(mt.convert(copy.deepcopy(model)))(x)
        torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-5)
    assert [call.channels_last for call in calls] == [is_channels_last] * 2
    assert runs == {"forward": 2}
    formats = set[bool]()

    def run(x: torch.Tensor, sum_: torch.Tensor | None) -> None:
        formats.add(x.is_contiguous(memory_format=torch.channels_last))

    with torch.no_grad():
        comparison._measure(calls[1], packed[1]._replace(run=run))
    assert formats == {True}, "Inductor's convolution is measured in its own format"


class UsersPass(inductor.GraphPass):  # type: ignore[misc]
    """A pass of the user that counts its calls."""

    calls = 0

    def __call__(self, graph: torch.fx.Graph, is_inference: bool | None = None) -> None:
        self.calls += 1

    def uuid(self) -> bytes:
        return b"the user's pass"


def test_the_users_own_pass_runs_too(runs: Counter[str]) -> None:
    own = UsersPass()
    inductor_config.post_grad_custom_pre_pass = own
    torch.compile(mt.convert(network()))(image())
    assert own.calls
    assert runs["forward"] == 4


def test_a_pass_that_replaces_ours_leaves_all_to_inductor(runs: Counter[str]) -> None:
    own = UsersPass()
    model, x = network(), image()
    compiled = torch.compile(mt.convert(copy.deepcopy(model)), options={"post_grad_custom_pre_pass": own})
    torch.testing.assert_close(compiled(x), model(x))
    assert own.calls
    assert not runs


def test_the_cache_of_compiled_graphs_knows_users_pass_and_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, other = type("Trace", (), {})(), type("Trace", (), {})()
    monkeypatch.setattr(inductor, "present_trace", lambda: trace)
    monkeypatch.setitem(inductor.limits_of_traces, trace, [1 << 20])
    swap, own = graph_pass.Swap, [UsersPass()]
    known = swap(own).uuid()
    assert known == swap(own).uuid()
    assert known != swap([]).uuid()
    assert swap([lambda graph: None]).uuid() is None
    for name, value in (("digest_of_choices", lambda: "others"), ("_CODE", b"another version")):
        with monkeypatch.context() as changed:
            changed.setattr(graph_pass, name, value)
            assert known != swap(own).uuid()
    monkeypatch.setattr(graph_pass, "digest_of_choices", lambda: "others")
    monkeypatch.setattr(inductor, "present_trace", lambda: other)
    without = swap(own).uuid()
    assert b"others" not in without


def test_new_times_change_the_digest_of_choices() -> None:
    before = comparison.digest_of_choices()
    call = CompiledCall(
        "forward", (2, 4, 9, 9), (4, 4, 3, 3), torch.float32, (1, 1), (1, 1), (1, 1), 1, True, "1MiB"
    )
    comparison.choose(call, None)
    after = comparison.digest_of_choices()
    assert before != after
    comparison.choose(call, None)
    assert after == comparison.digest_of_choices()


@pytest.mark.parametrize("pass_", ["forward", "backward_data", "backward_filter"])
def test_all_ways_of_the_engine_fit_the_limit_and_compute_the_same(pass_: str) -> None:
    call = CompiledCall(
        pass_, (5, 8, 20, 20), (8, 8, 3, 3), torch.float32, (1, 1), (1, 1), (1, 1), 1, True, "1MiB"
    )
    x, w, y = operators.random_operands(call)
    first, second = {"forward": (x, w), "backward_data": (y, w), "backward_filter": (x, y)}[pass_]
    ways = operators.choices(call)
    assert {1, 5} <= {way.micro_batch for way in ways}
    assert len({way.algorithm for way in ways}) > 1
    results = [operators.run(call, way, first, second) for way in ways]
    for result, way in zip(results, ways, strict=True):
        assert dispatch.prepare_slices(call.call, *way).workspace <= 1 << 20
        torch.testing.assert_close(result, results[0], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_convolution_of_unknown_size_is_chosen_when_it_runs(
    dims: int, runs: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = list[CompiledCall]()
    monkeypatch.setattr(unknown_sizes, "choose", lambda call, _: chosen.append(call) or engine(call))
    model = network(dims)
    compiled = torch.compile(mt.convert(copy.deepcopy(model)), dynamic=True)
    for size in (12, 14, 12):
        x = torch.rand(4, 3, *(size,) * dims)
        stock, exact = copy.deepcopy(model), copy.deepcopy(model).double()
        compiled.zero_grad()
        for run, values in ((compiled, x), (stock, x), (exact, x.double())):
            run(values).square().mean().backward()
        for own, other, truth in zip(*map(gradients, (compiled, stock, exact)), strict=True):
            assert_as_exact_as_stock(own, other, truth)
    assert runs == {"forward": 12, "backward_data": 9, "backward_filter": 12}
    assert len(set(chosen)) == len(chosen) == 22, "each is chosen once"


@pytest.mark.parametrize("dims", [2, 3])
def test_a_frozen_convolution_of_dynamic_shape_is_chosen_for_the_first_size_and_when_it_runs(
    dims: int, runs: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_run_time = list[CompiledCall]()
    monkeypatch.setattr(unknown_sizes, "choose", lambda call, _: at_run_time.append(call) or engine(call))
    monkeypatch.setattr(unknown_sizes, "_choices", Recent(8))
    model = network(dims).eval()
    if dims == 3:
        model[3].stride = (1, 1, 1)  # Inductor itself fails with another one
    compiled = torch.compile(mt.convert(copy.deepcopy(model)), dynamic=True)
    sizes = ((4, 12), (4, 14), (3, 12), (4, 12))
    inputs = (torch.rand(samples, 3, *(size,) * dims) for samples, size in sizes)
    assert_inference_is_exact(model, compiled, *inputs)
    assert runs == {"forward": 16}
    assert [call.x[0] for call in at_run_time] == [4] * 4 + [3] * 4
    assert all(call.constant_filter for call in at_run_time)


def test_a_frozen_convolution_of_dynamic_shape_stays_inductors_if_that_is_faster_for_the_first_size(
    runs: Counter[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graph_pass, "choose", lambda *_: None)
    caplog.set_level(logging.INFO, "mucudnn")
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).eval()
    compiled = torch.compile(mt.convert(copy.deepcopy(model)), dynamic=True)
    assert_inference_is_exact(model, compiled, *(torch.rand(4, 3, size, size) for size in (12, 14)))
    assert not runs
    assert "1 forward convolutions left to Inductor" in caplog.text


def test_a_mode_for_cuda_graphs_changes_nothing_on_a_cpu(runs: Counter[str]) -> None:
    model, x = network(), image()
    compiled = torch.compile(mt.convert(copy.deepcopy(model)), mode="reduce-overhead")
    torch.testing.assert_close(compiled(x), model(x))
    assert runs["forward"] == 4


def test_a_plan_is_followed_in_compiled_code(runs: Counter[str]) -> None:
    model, x = nn.Conv2d(3, 4, 3), image()
    plan = mt.plan(model, x, workspace="1MiB")
    converted = mt.convert(copy.deepcopy(model), plan=plan)
    torch.testing.assert_close(torch.compile(converted)(x), model(x))
    assert not runs


def test_a_strange_pytorch_gets_todays_operators_and_one_warning(
    runs: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracing.names_of_inductor.cache_clear()
    monkeypatch.delitem(sys.modules, inductor.__name__)
    monkeypatch.setitem(sys.modules, "torch._inductor.custom_graph_pass", None)
    monkeypatch.delattr(torch._inductor, "custom_graph_pass", raising=False)
    model, x = network(), image()
    try:
        with pytest.warns(MucudnnWarning, match=r"inside torch\.compile") as warned:
            result = torch.compile(mt.convert(copy.deepcopy(model)), backend="aot_eager")(x)
        assert len([each for each in warned if each.category is MucudnnWarning]) == 1
        assert tracing.names_of_inductor() is None
    finally:
        tracing.names_of_inductor.cache_clear()
    torch.testing.assert_close(result, model(x))
    assert not runs


AHEAD = """
import sys, torch
x = torch.rand((2, 3, 12, 12), generator=torch.Generator().manual_seed(1))
run = torch._inductor.aoti_load_package(sys.argv[1])
assert "mucudnn" not in sys.modules
torch.save(run(x), sys.argv[2])
"""


def test_a_package_made_ahead_of_time_runs_without_mucudnn(tmp_path: Path, runs: Counter[str]) -> None:
    x = torch.rand((2, 3, 12, 12), generator=torch.Generator().manual_seed(1))
    model = nn.Conv2d(3, 4, 3, padding=1)
    with torch.no_grad():
        exported = torch.export.export(mt.convert(copy.deepcopy(model)), (x,), strict=False)
        package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "model.pt2"))
        expected = model(x)
    ran = programs.run(sys.executable, "-c", AHEAD, package, tmp_path / "y.pt")
    assert ran.returncode == 0, ran.stderr
    torch.testing.assert_close(torch.load(tmp_path / "y.pt"), expected)
    assert not runs


REPEAT = """
import sys, torch, torch._inductor.config as config
import mucudnn.torch as mt
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3))
x = torch.rand(4, 8, 24, 24)
y = torch.compile(mt.convert(model))(x)
y.square().sum().backward()
torch.save([y.detach(), *(p.grad for p in model.parameters())], sys.argv[1])
"""


def test_two_processes_with_one_cache_compute_the_same_bits(tmp_path: Path) -> None:
    results = []
    for name in ("first", "second"):
        # Without Inductor's caches of graphs, each process generates its code from the choices in our cache.
        without_graphs = {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
        ran = programs.run(sys.executable, "-c", REPEAT, tmp_path / name, **without_graphs)
        assert ran.returncode == 0, ran.stderr
        results.append(torch.load(tmp_path / name))
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


def test_profilers_show_convolutions_without_gradients() -> None:
    model, x = mt.convert(nn.Conv2d(3, 4, 3)), image()
    with torch.no_grad():
        model(x)
        with torch.profiler.profile(record_shapes=True) as profile:
            model(x)
    events = [event for event in profile.events() if event.name == "mucudnn::convolution_forward"]
    assert events
    assert events[0].input_shapes[:2] == [list(x.shape), [4, 3, 3, 3]]

"""`convert` changes how a model's convolutions run, and nothing else; `plan` says how."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import traceback
from pathlib import Path

import pytest
from needs_torch import mt, torch

import mucudnn
from mucudnn import dispatch, tiles
from mucudnn.errors import MucudnnError, NothingFitsError
from mucudnn.plan import Plan
from mucudnn.torch import modules

nn = torch.nn


class Network(nn.Module):
    """Convolutions of every kind that differs, and what modules usually stand beside."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding="same"),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False),
            nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
            nn.Dropout(0.5),
        )
        self.signal = nn.Conv1d(8, 4, 3, stride=2)
        self.volume = nn.Conv3d(1, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        return self.signal(x.flatten(2)).mean() + self.volume(x[:, None]).square().mean()


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(1)
    return Network().eval()


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(X).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def types(model: nn.Module) -> list[type]:
    return [type(module) for module in model.modules()]


def runs_divided(model: nn.Module) -> bool:
    """Whether a call comes by here."""
    before = dict(dispatch._prepared)
    dispatch._prepared.clear()
    try:
        model(X)
        return bool(dispatch._prepared)
    finally:
        dispatch._prepared.update(before)


def test_results_and_gradients_stay_the_same(network: nn.Module) -> None:
    expected, wanted = network(X), gradients(network)
    assert mt.convert(network, workspace="1MiB") is network
    assert runs_divided(network)
    torch.testing.assert_close(network(X), expected)
    torch.testing.assert_close(gradients(network), wanted)


def test_restore_undoes_convert(network: nn.Module) -> None:
    before, attributes = types(network), [set(vars(module)) for module in network.modules()]
    mt.convert(network)
    assert types(network) != before
    assert mt.restore(network) is network
    assert types(network) == before
    assert [set(vars(module)) for module in network.modules()] == attributes
    assert not runs_divided(network)


def test_a_model_can_be_converted_again_for_another_limit(network: nn.Module) -> None:
    mt.convert(mt.convert(network, workspace="1MiB"), workspace=0)
    assert network.signal._mucudnn.workspace == "0"
    mt.restore(network)
    assert type(network.signal) is nn.Conv1d


def test_state_parameters_and_appearance_stay(network: nn.Module) -> None:
    state, text = network.state_dict(), repr(network)
    parameters = list(network.parameters())
    mt.convert(network)
    assert list(network.state_dict()) == list(state)
    assert all(one is other for one, other in zip(network.parameters(), parameters, strict=True))
    assert repr(network) == text
    assert isinstance(network.signal, nn.Conv1d)
    network.load_state_dict(state)


def test_hooks_stay(network: nn.Module) -> None:
    seen = []
    network.signal.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    network.signal.register_full_backward_hook(lambda module, gi, go: seen.append(go[0].shape))
    mt.convert(network)(X).backward()
    assert seen == [(4, 4, 31), (4, 4, 31)]


@pytest.mark.parametrize("with_plan", [False, True])
def test_copies_and_pickles_are_converted_too(network: nn.Module, with_plan: bool) -> None:
    plan = mt.plan(network, X) if with_plan else None
    mt.convert(network, workspace="1MiB", plan=plan)
    expected = network(X)
    file = io.BytesIO()
    torch.save(network, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for copied in (copy.deepcopy(network), pickle.loads(pickle.dumps(network)), loaded):
        assert types(copied) == types(network)
        assert copied.signal._mucudnn.workspace == "1MiB"
        assert copied.signal._mucudnn.handle == network.signal._mucudnn.handle
        torch.testing.assert_close(copied(X), expected)


def test_a_single_module_is_a_model_too() -> None:
    module = mt.convert(nn.Conv2d(3, 4, 3))
    assert type(module) is modules.Conv2d
    torch.testing.assert_close(module(X), mt.restore(module)(X))


def test_compiling_a_converted_model_breaks_no_graph(network: nn.Module) -> None:
    plan = mt.plan(network, X)
    expected, wanted = network(X), gradients(network)
    mt.convert(network, plan=plan)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), expected)
    torch.testing.assert_close(gradients(network), wanted)
    network.zero_grad()
    compiled(X).backward()
    torch.testing.assert_close({n: p.grad for n, p in network.named_parameters()}, wanted)


def test_distributed_training_goes_on(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_train_distributed, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == 0


def _train_distributed(folder: Path) -> None:
    """In a process that ends at once: Gloo's threads may wait for Python's lock where they are joined."""
    torch.manual_seed(1)
    network = Network().eval()
    wanted = gradients(network)
    store = torch.distributed.FileStore(str(folder / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for parallel in (
            nn.parallel.DistributedDataParallel(mt.convert(network)),
            mt.convert(nn.parallel.DistributedDataParallel(mt.restore(network))),
        ):
            network.zero_grad()
            parallel(X).backward()
            torch.testing.assert_close({n: p.grad for n, p in network.named_parameters()}, wanted)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def test_training_takes_the_same_course() -> None:
    losses = []
    for limit in (None, "100KiB"):
        torch.manual_seed(1)
        model = Network().train()
        if limit:
            mt.convert(model, workspace=limit)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(X)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)


def test_autocast_and_channels_last_go_on(network: nn.Module) -> None:
    image = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)).to(memory_format=torch.channels_last)
    stock = image(X)
    assert mt.convert(image)(X).stride() == stock.stride()
    torch.testing.assert_close(image(X), stock)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert image(X).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "x",
    [X[:0], X.to(torch.complex64), X.to("meta")],
    ids=["empty", "complex", "meta"],
)
def test_what_cannot_be_divided_runs_as_before(x: torch.Tensor) -> None:
    module = nn.Conv2d(3, 4, 3, device=x.device, dtype=x.dtype)
    expected = module(x)
    result = mt.convert(module)(x)
    assert result.shape == expected.shape
    if not x.is_meta:
        assert torch.equal(result, expected)


# PyTorch's own transforms compile a helper with what PyTorch has deprecated.
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_transforms_and_subclasses_run_as_before() -> None:
    class Marked(torch.Tensor):
        pass

    module = nn.Conv2d(3, 4, 3)
    weight, direction = module.weight.detach(), torch.ones(4, 3, 3, 3)

    def applied(weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, {"weight": weight}, X)

    def results() -> list[torch.Tensor]:
        return [
            torch.func.vmap(module)(X[None])[0],
            torch.func.grad(lambda w: applied(w).square().sum())(weight),
            torch.func.jvp(applied, (weight,), (direction,))[1],
            module(X.as_subclass(Marked)).as_subclass(torch.Tensor),
        ]

    expected = results()
    mt.convert(module)
    torch.testing.assert_close(results(), expected)


def test_what_fails_inside_runs_as_before_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_fits(*given: object, **options: object) -> None:
        raise NothingFitsError("nothing fits")

    monkeypatch.setattr("mucudnn.torch.ops.prepared", nothing_fits)
    module = nn.Conv2d(3, 4, 3, padding=1)
    expected = torch.autograd.grad(module(X).sum(), module.weight)[0]
    mt.convert(module)
    x = X.clone().requires_grad_()
    with pytest.warns(RuntimeWarning, match="mucudnn leaves a convolution to PyTorch: nothing fits"):
        result = module(x)
    with pytest.warns(RuntimeWarning, match="nothing fits"):
        gradient = torch.autograd.grad(result.sum(), (module.weight, x))[0]
    torch.testing.assert_close(gradient, expected)


def test_subclasses_are_left_alone() -> None:
    class Special(nn.Conv2d):
        pass

    model = nn.Sequential(Special(3, 4, 3), nn.Conv2d(4, 4, 3))
    mt.convert(model)
    assert [type(module) for module in model] == [Special, modules.Conv2d]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"workspace": "8MB"}, ValueError, "'8MB' is not a size"),
        ({"workspace": -1}, ValueError, "cannot be negative"),
        ({"plan": "no.plan"}, MucudnnError, "no.plan cannot be read"),
        ({"plan": 1}, TypeError, "plan is int"),
    ],
)
def test_what_convert_cannot_understand_it_says_at_once(
    network: nn.Module, given: dict[str, object], error: type[Exception], says: str
) -> None:
    before = types(network)
    with pytest.raises(error, match=says) as caught:
        mt.convert(network, **given)
    assert isinstance(caught.value, MucudnnError)
    assert types(network) == before


def test_a_model_without_convolutions() -> None:
    with pytest.raises(ValueError, match=r"no nn\.Conv1d, nn\.Conv2d or nn\.Conv3d"):
        mt.convert(nn.Linear(2, 2))


def test_a_plan_has_every_convolution_that_ran_with_its_passes(network: nn.Module) -> None:
    plan = mt.plan(network, X, workspace="1MiB")
    counted = {(kernel.problem.dims, kernel.pass_) for kernel in plan.kernels}
    assert {pass_ for _, pass_ in counted} == {"forward", "backward_data", "backward_filter"}
    first = [k for k in plan.kernels if k.problem.in_channels == 3]
    assert {k.pass_ for k in first} == {"forward", "backward_filter"}  # nobody asks for the input's gradient
    assert all(k.chosen.workspace <= 2**20 for k in plan.kernels)
    with torch.no_grad():
        assert {k.pass_ for k in mt.plan(network, X).kernels} == {"forward"}


def test_equal_convolutions_are_counted(network: nn.Module) -> None:
    convolution = nn.Conv2d(3, 3, 3, padding=1)
    plan = mt.plan(nn.Sequential(convolution, convolution, nn.Conv2d(3, 3, 3, padding=1)), X)
    assert {(k.pass_, k.count) for k in plan.kernels} == {
        ("forward", 3), ("backward_data", 2), ("backward_filter", 3),
    }  # fmt: skip


def test_a_total_is_divided_among_all(network: nn.Module) -> None:
    plan = mt.plan(network, X, total_workspace="300KiB")
    assert plan.header["mode"] == "wd"
    assert sum(k.count * k.chosen.workspace for k in plan.kernels) <= 300 * 2**10


def test_a_converted_model_follows_its_plan(
    network: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = mt.plan(network, X)
    mucudnn.write_plan(plan, tmp_path / "a.plan")
    monkeypatch.setattr(dispatch, "_prepared", {})
    monkeypatch.setattr(dispatch, "benchmark", None)  # nothing is measured
    for given in (plan, str(tmp_path / "a.plan"), tmp_path / "a.plan"):
        mt.convert(network, plan=given)(X).backward()
    chosen = {(k.problem, k.pass_): k.chosen for k in plan.kernels}
    assert {(p.problem, p.plan is not None) for p in dispatch._prepared.values()} == {
        (problem, True) for problem, _ in chosen
    }
    assert all(p.configuration in chosen.values() for p in dispatch._prepared.values())


def test_a_plan_has_the_tiles_that_a_call_without_it_would_find(
    network: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tiles, "are_faster", lambda *_: True)
    monkeypatch.setattr(dispatch, "_prepared", {})
    module = nn.Conv2d(16, 16, 3, padding=1)
    image = torch.randn(1, 16, 48, 48, requires_grad=True)
    expected = torch.autograd.grad(module(image).square().sum(), (image, *module.parameters()))
    mucudnn.write_plan(mt.plan(module, image, workspace="512KiB"), tmp_path / "a.plan")
    plan = mucudnn.read_plan(tmp_path / "a.plan")
    assert all(k.tiles is not None and k.tiles.workspace <= 2**19 for k in plan.kernels)
    mt.convert(module, workspace="512KiB")(image).square().sum().backward()
    assert {p.configuration for p in dispatch._prepared.values()} == {k.tiles for k in plan.kernels}
    monkeypatch.setattr(dispatch, "_prepared", {})
    monkeypatch.setattr(dispatch, "benchmark", None)  # nothing is measured
    mt.convert(module, plan=plan)
    found = torch.autograd.grad(module(image).square().sum(), (image, *module.parameters()))
    assert {p.configuration for p in dispatch._prepared.values()} == {k.tiles for k in plan.kernels}
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_what_the_plan_does_not_have_runs_within_the_workspace(network: nn.Module) -> None:
    plan = mt.plan(network, X)
    expected = network(X[:3])
    torch.testing.assert_close(mt.convert(network, plan=plan, workspace="1MiB")(X[:3]), expected)


def test_planning_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    model = Network().train()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(7)
    wanted = torch.rand(3)
    torch.manual_seed(7)
    mt.plan(model, X)
    assert torch.equal(torch.rand(3), wanted)
    torch.testing.assert_close(model.state_dict(), before)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_model_that_takes_several_arguments_or_names() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 2, 3)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.convolution(input=x + y)

    assert len(mt.plan(Two(), (X, X)).kernels) == 2


def test_both_limits_are_one_too_many(network: nn.Module) -> None:
    with pytest.raises(ValueError, match="one limit is enough"):
        mt.plan(network, X, workspace=1, total_workspace=1)


def test_a_model_on_a_device_without_an_engine_cannot_be_planned() -> None:
    module = nn.Conv2d(3, 2, 3, device="meta")
    with pytest.raises(RuntimeError, match="no engine for arrays on meta"):
        mt.plan(module, X.to("meta"))


def test_a_plan_of_nothing_that_ran() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    with pytest.raises(ValueError, match="no convolution of the model ran"):
        mt.plan(Idle(), X)


def test_an_empty_plan_is_a_plan(network: nn.Module) -> None:
    expected = network(X)
    torch.testing.assert_close(mt.convert(network, plan=Plan())(X), expected)

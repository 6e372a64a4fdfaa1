"""`convert` changes the algorithms of a model's convolutions and nothing else."""

import copy
import io
import pickle

import pytest
from needs_torch import mt, torch
from small_network import X

from mucudnn.errors import MucudnnError, MucudnnWarning, NothingFitsError
from mucudnn.torch.layers.convert import convolutions

nn = torch.nn


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(X).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def runs_divided(model: nn.Module, x: torch.Tensor = X) -> bool:
    """Return whether mucudnn's operators run in a call of the model."""
    with torch.profiler.profile() as profile, torch.no_grad():
        model(x)
    return any("mucudnn::" in event.key for event in profile.key_averages())


def test_restore_undoes_convert(network: nn.Module) -> None:
    attributes = [set(vars(module)) for module in network.modules()]
    mt.convert(network)
    assert type(network.signal) is nn.Conv1d  # many tools ask for `type(module)`
    assert mt.restore(network) is network
    assert [set(vars(module)) for module in network.modules()] == attributes
    assert not runs_divided(network)


def test_a_model_can_be_converted_again_for_another_limit(network: nn.Module) -> None:
    mt.convert(mt.convert(network, workspace="1MiB"), workspace=0)
    assert network.signal._mucudnn.workspace == "0B"


def test_state_and_parameters_stay(network: nn.Module) -> None:
    state = network.state_dict()
    parameters = list(network.parameters())
    mt.convert(network)
    assert list(network.state_dict()) == list(state)
    assert all(
        parameter is original for parameter, original in zip(network.parameters(), parameters, strict=True)
    )
    assert isinstance(network.signal, nn.Conv1d)
    network.load_state_dict(state)


def test_the_text_of_a_model_shows_the_limit_of_each_convolution(network: nn.Module) -> None:
    text = repr(network)
    converted = repr(mt.convert(network, workspace="1MiB"))
    assert converted.count(", workspace=1MiB)") == len(convolutions(network))
    assert converted.replace(", workspace=1MiB)", ")") == text
    plan = mt.plan(network, X, workspace="2MiB")
    assert f", plan={plan.digest[:8]}, workspace=64MiB)" in repr(mt.convert(network, plan=plan))
    assert repr(mt.restore(network)) == text


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
        assert copied.signal._mucudnn.workspace == "1MiB"
        assert copied.signal._mucudnn.handle == network.signal._mucudnn.handle
        torch.testing.assert_close(copied(X), expected)


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


def test_compiling_for_a_size_that_is_known_when_it_runs() -> None:
    module = nn.Conv2d(3, 4, 3)
    mask = torch.tensor([True, False, True, True])
    expected = module(X[mask])
    mt.convert(module)
    compiled = torch.compile(lambda x, mask: module(x[mask]), backend="aot_eager", fullgraph=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.testing.assert_close(compiled(X, mask), expected)
        with pytest.warns(MucudnnWarning, match="leaves a convolution to PyTorch: the mini-batch .* is 0"):
            assert compiled(X, mask & False).shape == (0, 4, 6, 6)


def test_a_call_that_fails_inside_runs_as_before_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_fits(*arguments: object, **options: object) -> None:
        raise NothingFitsError("nothing fits")

    monkeypatch.setattr("mucudnn.torch.operators.passes.prepared", nothing_fits)
    module = nn.Conv2d(3, 4, 3, padding=1)
    expected = torch.autograd.grad(module(X).sum(), module.weight)[0]
    mt.convert(module)
    x = X.clone().requires_grad_()
    with pytest.warns(MucudnnWarning, match="mucudnn leaves a convolution to PyTorch: nothing fits"):
        result = module(x)
    with pytest.warns(MucudnnWarning, match="nothing fits"):
        gradient = torch.autograd.grad(result.sum(), (module.weight, x))[0]
    torch.testing.assert_close(gradient, expected)


def test_a_tensor_in_the_layout_of_mkldnn_runs_as_before() -> None:
    module = nn.Conv2d(3, 4, 3)
    expected = module(X.to_mkldnn()).to_dense()
    torch.testing.assert_close(mt.convert(module)(X.to_mkldnn()).to_dense(), expected)


class Causal(nn.Conv3d):
    """A convolution as in diffusers' video autoencoders, which pads its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(nn.functional.pad(x, (1, 1, 1, 1, 2, 0)))


class Standardized(nn.Conv2d):
    """A convolution as in timm, which changes its weight and calls PyTorch's function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.weight - self.weight.mean([1, 2, 3], keepdim=True)
        return nn.functional.conv2d(x, weight, self.bias, [1, 1], padding=1)


class Reversed(nn.Conv2d):
    """A convolution of which only the inner method differs."""

    def _conv_forward(self, x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return super()._conv_forward(x.flip(3), *parameters)


class Unfolded(nn.Conv2d):
    """A convolution without one of PyTorch's functions for convolutions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        columns = nn.functional.unfold(x, self.kernel_size)
        return (self.weight.flatten(1) @ columns).unflatten(2, [size - 2 for size in x.shape[2:]])


SUBCLASSES = {
    "causal": (lambda: Causal(3, 4, 3), X[:, :, None].expand(-1, -1, 3, -1, -1)),
    "standardized": (lambda: Standardized(3, 4, 3), X),
    "reversed": (lambda: Reversed(3, 4, 3), X),
    "parametrized": (lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)), X),
}


@pytest.mark.parametrize("case", SUBCLASSES)
def test_the_convolutions_of_a_subclass_are_reached(case: str) -> None:
    make, x = SUBCLASSES[case]
    stock = make()
    ours = mt.convert(copy.deepcopy(stock), choice="fixed")
    assert type(ours).__name__ == type(stock).__name__
    assert runs_divided(ours, x)
    for copied in (ours, copy.deepcopy(ours), torch.compile(ours, backend="aot_eager", fullgraph=True)):
        results = []
        for module in (copied, stock):
            module.zero_grad()
            y = module(x)
            y.square().sum().backward()
            results.append([y, *(parameter.grad for parameter in module.parameters())])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-3)
    reach = "1 of 1 convolutions are reached, with 100% of their weights and 100% of their FLOPs."
    assert str(mt.summary(ours, x)).endswith(reach)
    assert len(mt.plan(stock, x).kernels) == 2
    assert not {"forward", "_conv_forward"} & vars(mt.restore(ours)).keys()
    assert torch.equal(ours(x), stock(x))


def test_a_convolution_that_is_not_reached_is_named_once() -> None:
    model = mt.convert(nn.Sequential(Unfolded(3, 4, 3), nn.Conv2d(4, 6, 3), Unfolded(6, 4, 3)))
    text = "Unfolded stays PyTorch's, because its forward calls none of PyTorch's functions for convolutions"
    with pytest.warns(MucudnnWarning, match=text):
        model(X)
    model(X)  # a second warning would be an error
    share = "1 of 3 convolutions are reached, with 40% of their weights and 42% of their FLOPs"
    assert f"{share}; {text}." in str(mt.summary(model, X))


def test_a_shallow_copy_follows_the_module_that_it_was_made_of() -> None:
    module = mt.convert(nn.Conv2d(3, 4, 3))
    copied = copy.copy(module)
    assert torch.equal(copied(X), module(X))
    del module
    with pytest.raises(MucudnnError, match=r"shallow copy .* call mucudnn\.torch\.convert\(copy\)"):
        copied(X)
    assert mt.convert(copied)(X).shape == (4, 4, 6, 6)


def test_only_a_module_is_converted() -> None:
    with pytest.raises(TypeError, match=r"the model is 'resnet18': give a torch\.nn\.Module"):
        mt.convert("resnet18")


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"workspace": "8M"}, ValueError, "'8M' is not a size"),
        ({"plan": "no.plan"}, MucudnnError, "no.plan cannot be read"),
        ({"plan": 1}, TypeError, "plan is int"),
    ],
)
def test_convert_refuses_invalid_arguments_at_once(
    network: nn.Module, options: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        mt.convert(network, **options)
    assert isinstance(caught.value, MucudnnError)
    assert "workspace" not in repr(network)


def test_a_model_without_convolutions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no nn\.Conv1d, nn\.Conv2d or nn\.Conv3d"):
        mt.convert(nn.Linear(2, 2))


def test_a_lazy_module_is_converted_before_it_knows_its_weight() -> None:
    module = mt.convert(nn.LazyConv2d(4, 3), choice="fixed")
    assert module(X).shape == (4, 4, 6, 6)
    assert runs_divided(module)

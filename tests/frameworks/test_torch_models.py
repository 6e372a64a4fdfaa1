"""`convert` changes the algorithms of a model's convolutions and nothing else."""

import copy
import io
import pickle

import pytest
from needs_torch import mt, torch
from small_network import X

from mucudnn.arrays import dispatch
from mucudnn.errors import MucudnnError, MucudnnWarning, NothingFitsError
from mucudnn.torch.layers import converted as modules
from mucudnn.torch.layers.convert import convolutions

nn = torch.nn


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(X).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def types(model: nn.Module) -> list[type]:
    return [type(module) for module in model.modules()]


def runs_divided(model: nn.Module, x: torch.Tensor = X) -> bool:
    """Return whether a call of the model is decided by mucudnn."""
    before = dict(dispatch._prepared)
    dispatch._prepared.clear()
    try:
        model(x)
        return bool(dispatch._prepared)
    finally:
        dispatch._prepared.update(before)


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
    assert network.signal._mucudnn.workspace == "0B"
    mt.restore(network)
    assert type(network.signal) is nn.Conv1d


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
        assert types(copied) == types(network)
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


def test_a_module_parametrized_after_converting_stays_divided_and_can_be_restored(network: nn.Module) -> None:
    mt.convert(network, workspace="1MiB")
    nn.utils.parametrizations.weight_norm(network.signal)
    expected = network(X)
    mt.convert(network, workspace="2MiB")
    assert network.signal._mucudnn.workspace == "2MiB"
    assert runs_divided(network.signal, torch.ones(1, 8, 9))
    mt.restore(network)
    assert not runs_divided(network)
    torch.testing.assert_close(network(X), expected)
    nn.utils.parametrize.remove_parametrizations(network.signal, "weight")
    assert not runs_divided(network)
    assert type(mt.restore(network).signal) is nn.Conv1d


class Special(nn.Conv2d):
    """A convolution of which `convert` cannot know what it computes."""


def test_subclasses_with_most_of_the_weights_are_named() -> None:
    model = nn.Sequential(
        Special(3, 8, 3), nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 3)), nn.Conv2d(8, 11, 1)
    )
    text = (
        "2 of 3 convolutions, with 90% of their weights, stay PyTorch's, because their classes are "
        "subclasses of PyTorch's: ParametrizedConv2d, Special"
    )
    with pytest.warns(MucudnnWarning, match=text):
        mt.convert(model)
    assert [type(module) is modules.Conv2d for module in model] == [False, False, True]
    assert f"{text}." in str(mt.summary(model, torch.ones(2, 3, 6, 6)))


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
    before = types(network)
    with pytest.raises(error, match=says) as caught:
        mt.convert(network, **options)
    assert isinstance(caught.value, MucudnnError)
    assert types(network) == before


def test_a_model_without_convolutions_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no nn\.Conv1d, nn\.Conv2d or nn\.Conv3d"):
        mt.convert(nn.Linear(2, 2))


@pytest.mark.parametrize("module", [Special(1, 1, 1), nn.LazyConv2d(1, 1)])
def test_a_model_with_nothing_but_subclasses_is_refused_by_their_names(module: nn.Module) -> None:
    with pytest.raises(ValueError, match=rf"nothing to divide .*: {type(module).__name__}\)"):
        mt.convert(nn.Sequential(module))

"""A converted model can be traced by `torch.jit` and exported, or an error says what to do."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from needs_torch import mt, torch

import mucudnn
from mucudnn.errors import MucudnnError, MucudnnWarning
from mucudnn.torch.layers import convert as modules
from mucudnn.torch.operators import options

nn = torch.nn
X, W = torch.randn(4, 3, 8, 8), torch.randn(4, 3, 3, 3)
LAST = torch.channels_last


class Calling(nn.Module):
    """A module that calls one of our functions."""

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return mt.conv2d(x, w, padding=1)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2))


def operators(graph: Any) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("x", [X, X.contiguous(memory_format=LAST)], ids=["contiguous", "channels last"])
def test_a_converted_model_is_traced_for_any_size_and_saved(x: torch.Tensor) -> None:
    model = mt.convert(network())
    traced, file = torch.jit.trace(model, x), io.BytesIO()
    assert str(traced.inlined_graph).count("mucudnn::convolution_forward") == 2
    torch.jit.save(traced, file)
    file.seek(0)
    for run in (traced, torch.jit.load(file)):
        for part in (x, x[:1], x[:, :, 1:, :5]):
            torch.testing.assert_close(run(part), model(part))
        assert run(x).stride() == model(x).stride()


def test_onnx_gets_convolutions_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.onnx, "is_in_onnx_export", lambda: True)
    assert "mucudnn::" not in str(torch.jit.trace(mt.convert(network()), X).inlined_graph)


@pytest.mark.parametrize("wrapped", [nn.Sequential, lambda model: model[0]], ids=["inside", "alone"])
def test_a_converted_model_cannot_be_scripted_and_the_error_says_what_to_do(
    wrapped: Callable[[nn.Module], nn.Module],
) -> None:
    model = network()
    with pytest.raises(MucudnnError, match=r"torch\.jit\.script.*mucudnn\.torch\.restore\(model\) first"):
        torch.jit.script(wrapped(mt.convert(model)))
    torch.testing.assert_close(torch.jit.script(wrapped(mt.restore(model)))(X), wrapped(model)(X))


def calling(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return mt.conv2d(x, w)


@pytest.mark.parametrize("called", [mt.conv1d, mt.conv2d, mt.conv3d, calling, Calling()])
def test_a_function_cannot_be_scripted_and_the_error_says_what_to_do(called: Any) -> None:
    with pytest.raises(Exception, match=r"torch\.jit\.script.*use torch\.nn\.functional\.conv\dd") as caught:
        torch.jit.script(called)
    assert isinstance(caught.value, MucudnnError)


# PyTorch's own run_decompositions gives this warning.
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")
@pytest.mark.parametrize("strict", [False, True])
def test_a_function_is_exported_for_any_batch(strict: bool) -> None:
    dynamic = {"x": {0: torch.export.Dim("n")}, "w": {}}
    exported, file = (
        torch.export.export(Calling(), (X, W), dynamic_shapes=dynamic, strict=strict),
        io.BytesIO(),
    )
    assert operators(exported.run_decompositions().graph) == ["mucudnn.convolution_forward.default"]
    torch.export.save(exported, file)
    file.seek(0)
    for run in (exported.module(), torch.export.load(file).module()):
        torch.testing.assert_close(run(X[:3], W), Calling()(X[:3], W))


# PyTorch 2.9 traces PyTorch's own convolution in both modes.
@pytest.mark.parametrize(("strict", "divided"), [(False, 0), (True, 0 if torch.__version__ < "2.10" else 2)])
def test_a_converted_model_is_exported_and_where_strict_stays_divided(strict: bool, divided: int) -> None:
    model = mt.convert(network())
    dynamic = ({0: torch.export.Dim("n")},)
    exported = torch.export.export(model, (X,), dynamic_shapes=dynamic, strict=strict)
    assert operators(exported.graph).count("mucudnn.convolution_forward.default") == divided
    torch.testing.assert_close(exported.module()(X[:3]), model(X[:3]))


@pytest.mark.parametrize("fallback", [False, True])
def test_a_plan_that_another_process_knew_is_named(fallback: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = mt.plan(nn.Conv2d(3, 4, 3, bias=False), X)
    if fallback:
        traced = torch.jit.trace(mt.convert(nn.Conv2d(3, 4, 3), plan=plan), X)
    else:
        traced = torch.jit.trace(lambda x: mt.conv2d(x, W, plan=plan), X)
    expected = traced(X)
    monkeypatch.setattr(options, "_plans", {})
    says = (
        r"does not know the plan with the digest \w+.*do that again without a plan, or with the path of one"
    )
    if fallback:
        with pytest.warns(MucudnnWarning, match=says):
            torch.testing.assert_close(traced(X), expected)
    else:
        with pytest.raises(Exception, match=says):
            traced(X)


def test_a_plan_by_its_path_stays_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mucudnn.write_plan(mt.plan(nn.Conv2d(3, 4, 3, bias=False), X), tmp_path / "a.plan")
    traced = torch.jit.trace(lambda x: mt.conv2d(x, W, plan=str(tmp_path / "a.plan")), X)
    monkeypatch.setattr(options, "_plans", {})
    torch.testing.assert_close(traced(X), mt.conv2d(X, W))


class Reading(torch.fx.Tracer):
    """A tracer with leaf modules of its own, as those that extract features have."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.ReLU) or super().is_leaf_module(m, module_qualified_name)


class Entering(torch.fx.Tracer):
    """A tracer that enters every module."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return False


def copied(module: nn.Module) -> Any:
    return copy.deepcopy(module)


def pickled(module: nn.Module) -> Any:
    return pickle.loads(pickle.dumps(module))


def compiled(module: nn.Module) -> Any:
    return torch.compile(module, backend="eager", fullgraph=True)


@pytest.mark.parametrize("tracer", [torch.fx.Tracer, Reading, Entering])
def test_the_nodes_of_a_converted_model_are_those_of_pytorchs_own(tracer: type[torch.fx.Tracer]) -> None:
    stock = nn.Sequential(*network(), nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"))
    ours = mt.convert(copy.deepcopy(stock))
    graphs = [tracer().trace(model) for model in (stock, ours)]
    first, second = ([(node.op, node.name, str(node.target)) for node in graph.nodes] for graph in graphs)
    assert first == second
    for way in (copied, pickled, compiled):
        torch.testing.assert_close(way(torch.fx.GraphModule(ours, graphs[1]))(X), stock(X))


@pytest.mark.parametrize("way", [copied, pickled, compiled])
def test_a_symbolically_traced_model_stays_converted_and_can_be_restored(way: Callable[..., Any]) -> None:
    own = network()
    traced = torch.fx.symbolic_trace(mt.convert(copy.deepcopy(own)))
    for x in (X, X[1:]):
        torch.testing.assert_close(way(traced)(x), own(x))
    assert len(modules.converted_layers(traced)) == 2
    assert [type(module) for module in mt.restore(traced).modules()].count(nn.Conv2d) == 2
    assert not any("__module__" in vars(module) for module in traced.modules())


@pytest.mark.parametrize("way", [copied, pickled, compiled])
def test_a_function_is_traced_symbolically_whichever_tensor_the_tracer_follows(
    way: Callable[..., Any],
) -> None:
    for function in (lambda x: mt.conv2d(x, W, padding=1), lambda w: mt.conv2d(X, w, padding=1)):
        traced = way(torch.fx.symbolic_trace(function))
        argument = X if function.__code__.co_varnames == ("x",) else W
        torch.testing.assert_close(traced(argument), function(argument))

"""Modules whose steps are left to PyTorch's own convolutions run these at once."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from needs_torch import mt, torch
from step_clock import EvenClock

from mucudnn.torch.layers import converted as modules

nn = torch.nn
SHAPE, OTHER_SHAPE = (2, 4, 9, 9), (2, 4, 8, 8)


def looks(model: nn.Module, x: torch.Tensor) -> list[str]:
    """Return the names of the layers that look for their choices in a call of a model."""
    names: list[str] = []
    name_of = {module: name for name, module in model.named_modules()}
    real = modules._run

    def watched(call: modules.Call) -> Any:
        names.append(name_of[call.module])
        return real(call)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules, "_run", watched)
        model(x)
    return names


@pytest.fixture
def left(cache_path: Path) -> nn.Module:
    """Return a model whose steps with samples of SHAPE are left to PyTorch's own convolutions."""
    model = nn.Sequential(
        nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, padding_mode="circular", padding=1), nn.Conv2d(4, 4, 1)
    )
    mt.convert(model)
    comparison = model[0]._mucudnn.comparison
    comparison._clock = EvenClock()  # all steps take the same time, and PyTorch's own win
    for _ in range(40):
        model(torch.randn(SHAPE))
    assert comparison.result == "stock"
    return model


def test_only_the_first_module_looks_in_steps_of_pytorchs_own(left: nn.Module) -> None:
    assert looks(left, torch.randn(SHAPE)) == ["0"]


def test_another_shape_and_the_first_one_again_are_noticed(left: nn.Module) -> None:
    assert looks(left, torch.randn(OTHER_SHAPE)) == ["0", "1", "2"]
    left(torch.randn(SHAPE))
    assert looks(left, torch.randn(SHAPE)) == ["0"]


def with_pickle(protocol: int) -> Callable[[nn.Module], nn.Module]:
    return lambda model: pickle.loads(pickle.dumps(model, protocol))  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", [copy.deepcopy, with_pickle(0), with_pickle(2), with_pickle(5)])
def test_copies_look_until_they_have_results_of_their_own(
    left: nn.Module, way: Callable[[nn.Module], nn.Module]
) -> None:
    copied = way(left)
    assert {type(module) for module in copied} == {nn.Conv2d}
    assert looks(copied, torch.randn(SHAPE)) == ["0", "1", "2"]
    copied(torch.randn(SHAPE))  # the cache knows the times of the steps
    assert looks(copied, torch.randn(SHAPE)) == ["0"]
    assert looks(left, torch.randn(SHAPE)) == ["0"]


def test_a_model_that_is_converted_again_looks_again(left: nn.Module) -> None:
    first = left[0]._mucudnn
    mt.convert(left[1:], workspace="1MiB")
    first.leave_to_pytorch(False)
    first.leave_to_pytorch(True)
    assert looks(left[1:], torch.randn(SHAPE)) == ["1", "2"]
    assert [str(module._mucudnn) for module in left[1:]] == ["workspace=1MiB"] * 2


def test_a_plan_is_followed_also_by_a_model_that_was_left_to_pytorch(left: nn.Module) -> None:
    x = torch.randn(SHAPE)
    plan = mt.plan(copy.deepcopy(left), x)
    mt.convert(left, plan=plan)
    assert looks(left, x) == ["0", "1", "2"]


def test_tracers_and_compilers_find_divided_modules(left: nn.Module) -> None:
    x, nodes = torch.randn(SHAPE), []

    def count(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        nodes.extend(node for node in graph.graph.nodes if "mucudnn" in str(node.target))
        return graph

    compiled = torch.compile(left, backend=count, fullgraph=True)
    compiled(x)
    assert len(nodes) == 3
    torch._dynamo.reset()
    left(x)
    assert str(torch.jit.trace(left, x).inlined_graph).count("mucudnn::") == 3
    left(x)
    assert looks(left, x) == ["0"]


def test_parametrized_modules_run_at_once_too(left: nn.Module) -> None:
    torch.nn.utils.parametrizations.weight_norm(left[1])
    assert looks(left, torch.randn(SHAPE)) == ["0"]
    torch.nn.utils.parametrize.remove_parametrizations(left[1], "weight")
    assert looks(left, torch.randn(SHAPE)) == ["0"]


def test_subclasses_of_tensors_run_as_before(left: nn.Module) -> None:
    class Special(torch.Tensor):
        pass

    x = torch.randn(SHAPE).as_subclass(Special)
    assert type(left(x)) is Special
    assert looks(left[1:], left[0](x)) == ["1", "2"]


def test_a_model_is_freed_without_the_garbage_collector(left: nn.Module) -> None:
    model = copy.deepcopy(left)
    for _ in range(3):
        model(torch.randn(SHAPE))
    weight = weakref.ref(model[1].weight)
    gc.disable()
    try:
        del model
        assert weight() is None
    finally:
        gc.enable()

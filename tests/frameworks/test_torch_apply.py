"""`apply` follows a plan of any kind, `restore` undoes it, and `dir` shows what is public."""

from pathlib import Path

import pytest
from needs_torch import mt, torch

import mucudnn
from mucudnn.errors import ArgumentTypeError, MucudnnError
from mucudnn.plans.devices.spatial_plan import SpatialLayer, SpatialPlan, SpatialStage

nn = torch.nn
X = torch.linspace(-1, 1, 4 * 3 * 8 * 8).reshape(4, 3, 8, 8)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))


def test_a_plan_of_convolutions_is_applied_and_undone(model: nn.Module, tmp_path: Path) -> None:
    expected, stock = model(X), str(model)
    plan = mt.plan(model, X)
    mucudnn.write_plan(plan, tmp_path / "model.plan")
    for source in (plan, tmp_path / "model.plan"):
        assert mt.apply(model, source) is model
        assert str(model) != stock
        torch.testing.assert_close(model(X), expected)
        assert mt.restore(model) is model
        assert str(model) == stock


def test_a_spatial_plan_is_applied_once_and_undone(model: nn.Module, tmp_path: Path) -> None:
    layers = tuple(
        SpatialLayer(name, place, 1.0, 0.0, 0, 0.0, 2) for name, place in (("0", "divided"), ("2", "whole"))
    )
    stages = (SpatialStage("2", ()),)
    plan = SpatialPlan({"depth": 2}, {2: "depth"}, "2", 1.0, 1, None, layers, (), (), stages)
    plan.write(tmp_path / "spatial.plan")
    for source in (plan, tmp_path / "spatial.plan"):
        mt.apply(model, source)
        assert [len(layer._forward_pre_hooks) for layer in model] == [0, 0, 1]
    mt.restore(model)
    assert [len(layer._forward_pre_hooks) for layer in model] == [0, 0, 0]


def test_what_is_not_a_plan_or_not_a_model_is_refused(model: nn.Module) -> None:
    for wrong in (3, None, {}):
        with pytest.raises(ArgumentTypeError, match="not the path of a plan"):
            mt.apply(model, wrong)
    for function in (lambda: mt.apply(3, {}), lambda: mt.restore(None)):
        with pytest.raises(ArgumentTypeError, match=r"not a torch\.nn\.Module"):
            function()
    with pytest.raises(MucudnnError, match="memory plan"):
        mt.apply(model, mt.plan_memory(model, X, memory="1GiB", device="h200"))


def test_dir_shows_the_public_names_alone() -> None:
    assert dir(mt) == sorted([*mt.__all__, "pipeline", "spatial"])
    assert all(getattr(mt, name) is not None for name in dir(mt))
    with pytest.raises(AttributeError, match="has no attribute 'passes_of'"):
        _ = mt.passes_of

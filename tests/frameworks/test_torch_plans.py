"""`plan` decides for a whole model beforehand, and a converted model follows it."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from needs_torch import mt, torch
from small_network import Network, X

import mucudnn
from mucudnn.arrays import choosing, dispatch
from mucudnn.arrays.recent import Recent
from mucudnn.plans.plan import Plan
from mucudnn.solver import Configuration, MicroConfiguration

nn = torch.nn


def test_a_plan_has_every_convolution_that_ran_with_its_passes(network: nn.Module) -> None:
    plan = mt.plan(network, X, workspace="1MiB")
    counted = {(kernel.problem.dims, kernel.pass_) for kernel in plan.kernels}
    assert {pass_ for _, pass_ in counted} == {"forward", "backward_data", "backward_filter"}
    first = [k for k in plan.kernels if k.problem.in_channels == 3]
    assert {k.pass_ for k in first} == {"forward", "backward_filter"}  # the input needs no gradient
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
    apart = [share for k in plan.kernels for share in k.shares or ((k.count, k.chosen),)]
    assert sum(count * configuration.workspace for count, configuration in apart) <= 300 * 2**10


def test_identical_layers_take_their_shares_in_order() -> None:
    model = nn.Sequential(*(nn.Conv2d(4, 4, 3, padding=1) for _ in range(3)), nn.Conv2d(4, 2, 3))
    x = torch.randn(4, 4, 8, 8)
    with torch.no_grad():
        plan = mt.plan(model, x, workspace=0)
    (same,) = [k for k in plan.kernels if k.count == 3]
    halves = Configuration((MicroConfiguration(2, "IMPLICIT_GEMM", 1.0, 0),) * 2)
    whole = Configuration((MicroConfiguration(4, "IMPLICIT_GEMM", 2.0, 0),))
    apart = replace(same, chosen=whole, shares=((1, halves), (2, whole)))
    plan = replace(plan, kernels=tuple(apart if k == same else k for k in plan.kernels))
    with torch.no_grad():
        expected = model(x)
        result = mt.convert(copy.deepcopy(model), plan=plan)(x)
    torch.testing.assert_close(result, expected)
    ran = [
        str(Plan.parse(layer._mucudnn._plan).find(same.kernel).chosen)
        for layer in mt.convert(model, plan=plan)[:3]
    ]
    assert ran == ["2*2 IMPLICIT_GEMM", "1*4 IMPLICIT_GEMM", "1*4 IMPLICIT_GEMM"]
    assert {p.configuration for p in dispatch._prepared.values()} >= {halves, whole}


def test_a_converted_model_follows_its_plan(
    network: nn.Module, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = mt.plan(network, X)
    mucudnn.write_plan(plan, tmp_path / "a.plan")
    monkeypatch.setattr(dispatch, "_prepared", Recent(4096))
    monkeypatch.setattr(choosing, "benchmark", None)  # measuring would fail
    for source in (plan, str(tmp_path / "a.plan"), tmp_path / "a.plan"):
        mt.convert(network, plan=source)(X).backward()
    chosen = {(k.problem, k.pass_): k.chosen for k in plan.kernels}
    assert {(p.problem, p.plan is not None) for p in dispatch._prepared.values()} == {
        (problem, True) for problem, _ in chosen
    }
    assert all(p.configuration in chosen.values() for p in dispatch._prepared.values())


@pytest.mark.parametrize("tune", ["eager", "never"])
def test_a_plan_of_another_machine_is_not_left_aside_in_silence(network: nn.Module, tune: str) -> None:
    plan = mt.plan(network, X)
    other = replace(plan, header={**plan.header, "device": "another processor"})
    model = mt.convert(network, plan=other, tune=tune)
    with pytest.warns(mucudnn.MucudnnWarning, match="the plan cannot be followed here: .*another processor"):
        model(X)


def test_kernels_missing_from_the_plan_run_within_the_workspace(network: nn.Module) -> None:
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


def test_a_model_may_take_several_or_named_arguments() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 2, 3)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.convolution(input=x + y)

    assert len(mt.plan(Two(), (X, X)).kernels) == 2


def test_both_limits_together_are_refused(network: nn.Module) -> None:
    with pytest.raises(ValueError, match="one limit is enough"):
        mt.plan(network, X, workspace=1, total_workspace=1)


def test_a_model_on_a_device_without_an_engine_cannot_be_planned() -> None:
    module = nn.Conv2d(3, 2, 3, device="meta")
    with pytest.raises(ValueError, match=r"no convolution of the model ran .* that could be divided"):
        mt.plan(module, X.to("meta"))


def test_an_indivisible_layer_is_not_in_the_plan() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = nn.Conv2d(3, 4, 3)
            self.mapped = nn.Conv2d(4, 4, 1)
            self.complex = nn.Conv2d(4, 4, 1, dtype=torch.complex64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.func.vmap(self.mapped)(self.plain(x)[None])[0]
            self.plain(x[:0])
            return self.complex(y.to(torch.complex64))

    assert {str(k.problem) for k in mt.plan(Mixed(), X).kernels} == {
        "f32:nchw:default:g1mb4_ic3ih8iw8_oc4oh6ow6_kh3kw3_sh1sw1_ph0pw0_dh0dw0"
    }


@pytest.mark.parametrize("has_run", [False, True])
def test_a_compiled_model_is_planned_like_the_original(has_run: bool) -> None:
    model = torch.compile(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), backend="aot_eager")
    if has_run:
        model(X)
    assert len(mt.plan(model, X).kernels) == 5

"""A summary shows the choice for each convolution of a converted model, and the log shows it once."""

import copy

import pytest
from needs_torch import mt, torch
from small_network import Network, X

from mucudnn.arrays import choosing, dispatch
from mucudnn.errors import UsageError
from mucudnn.output.text import micro_batches
from mucudnn.torch.layers.summaries import LayerChoice, Summary

nn = torch.nn


@pytest.fixture
def model() -> nn.Module:
    return mt.convert(Network(), workspace="1MiB")


def test_each_pass_of_each_layer_is_a_row(model: nn.Module) -> None:
    choices = mt.summary(model, X).choices
    layers = ("features.0", "features.3", "features.4", "signal", "volume")
    assert [(choice.layer, choice.pass_) for choice in choices if choice.pass_ == "forward"] == [
        (layer, "forward") for layer in layers
    ]
    # The input of the first layer needs no gradient.
    assert {choice.pass_ for choice in choices if choice.layer == "features.0"} == {
        "forward",
        "backward_filter",
    }
    assert len(choices) == 3 * len(layers) - 1
    assert all(choice.workspace is not None and choice.workspace <= 2**20 for choice in choices)
    with torch.no_grad():
        assert {choice.pass_ for choice in mt.summary(model, X).choices} == {"forward"}


def test_the_rows_are_what_later_calls_run(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = mt.summary(model, X).choices
    known = {(str(p.configuration), p.workspace) for p in dispatch._prepared.values()}
    assert len(known) <= len(choices)
    monkeypatch.setattr(choosing, "benchmark", None)  # measuring would fail
    model(X).backward()
    assert mt.summary(model, X).choices == choices


def test_the_choices_of_a_plan_are_shown(model: nn.Module) -> None:
    plan = mt.plan(model, X, workspace="64KiB")
    planned = {(k.pass_, micro_batches(k.chosen, " + ")) for k in plan.kernels}
    choices = mt.summary(mt.convert(model, plan=plan), X).choices
    assert {(choice.pass_, choice.micro_batches or "") for choice in choices} == planned


def test_a_layer_that_pytorch_computes_says_so() -> None:
    model = mt.convert(nn.Sequential(nn.Conv2d(2, 2, 1)))
    summary = mt.summary(model, torch.zeros(0, 2, 4, 4))
    assert [choice.micro_batches for choice in summary.choices] == [None]
    assert "1 of 1 passes by PyTorch's own convolutions: such an input cannot be divided" in str(summary)


def test_where_nothing_is_divided_the_text_says_why() -> None:
    choices = [
        LayerChoice("0", pass_, "mb4_ic8", reason="measured") for pass_ in ("forward", "backward_filter")
    ]
    assert str(Summary(tuple(choices))).endswith("\n2 of 2 passes by PyTorch's own convolutions: measured")
    whole = Summary((LayerChoice("0", "forward", "mb4_ic8", "1×4 GEMM", 1.5, 0, 1),))
    assert "None is divided: no division within the limit was faster" in str(whole)


def test_the_text_is_a_table_and_so_is_the_form_for_notebooks() -> None:
    summary = Summary(
        (
            LayerChoice(
                "features.denseblock1.denselayer16.conv2", "forward", "mb4_ic8", "2×1 A + 1×2 B", 1.5, 2048, 3
            ),
            LayerChoice("<last>", "backward_data", "mb4_ic8", reason="such an input cannot be divided"),
        )
    )
    assert str(summary).splitlines() == [
        "layer                             pass           kernel   micro-batches  predicted ms  workspace",
        "─" * 96,
        "features.densebl…selayer16.conv2  forward        mb4_ic8  2×1 A                  1.50      2 KiB",
        "                                                          1×2 B",
        "<last>                            backward_data  mb4_ic8  PyTorch's own             –          –",
        "",
        "1 of 2 passes by mucudnn, 1 of them divided: 1.50 ms predicted, workspace at most 2 KiB",
        "1 of 2 passes by PyTorch's own convolutions: such an input cannot be divided",
    ]
    assert summary._repr_html_().count("<tr>") == 3
    assert "<td>&lt;last&gt;</td>" in summary._repr_html_()


def test_the_model_does_not_change(model: nn.Module) -> None:
    model.train()
    before = copy.deepcopy(model.state_dict())
    state = torch.random.get_rng_state()
    mt.summary(model, X)
    assert torch.equal(torch.random.get_rng_state(), state)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_that_is_not_converted_is_refused() -> None:
    with pytest.raises(UsageError, match=r"call mucudnn.torch.convert\(model\) first"):
        mt.summary(Network(), X)


@pytest.mark.parametrize("busy", [0, 2])
def test_a_summary_counts_the_choices_of_a_busy_machine(busy: int) -> None:
    choices = [
        LayerChoice("conv", "forward", "kernel", "1×8 A", 1.0, 0, 1, is_busy=n < busy) for n in range(3)
    ]
    sentence = "2 of 3 were measured on a busy machine: later runs measure them again."
    assert (sentence in str(Summary(tuple(choices)))) == (busy > 0)

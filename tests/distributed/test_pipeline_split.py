"""An unchanged model is cut into stages that compute the same and keep its names."""

from __future__ import annotations

from functools import partial

import needs_torch  # noqa: F401
import pytest
import split_models as models
import split_networks
import torch
import worlds
from pipeline_cases import run
from torch import nn

from mucudnn.errors import UsageError
from mucudnn.torch.pipeline import split
from mucudnn.torch.tracing.saved import tensors_in


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_stages_in_a_row_have_the_outputs_gradients_and_names_of_the_model(name: str, count: int) -> None:
    model, inputs = models.make(name)
    model.eval()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    stages = split(model, stages=count, example_input=inputs)
    assert len(stages) == len(stages.costs) == count
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert set().union(*(stage.state_dict() for stage in stages)) == set(before)
    inputs = models.MODELS[name][1](7)  # the example has four samples
    expected = models.call(model, inputs)
    models.loss(expected, 1.0).backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    model.zero_grad()
    outputs = run(stages, inputs)
    torch.testing.assert_close(outputs, expected, rtol=1e-13, atol=1e-14)
    models.loss(outputs, 1.0).backward()
    for stage in stages:
        for key, parameter in stage.named_parameters():
            torch.testing.assert_close(parameter.grad, gradients[key], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", split_networks.NAMES)
def test_networks_of_other_packages_are_cut_into_stages_that_compute_the_same(name: str) -> None:
    network, inputs = split_networks.make(name)
    network.eval()
    stages = split(network, stages=4, example_input=inputs)
    outputs = [
        tensors_in(function(inputs)) for function in (partial(models.call, network), partial(run, stages))
    ]
    torch.testing.assert_close(outputs[1], outputs[0])


def test_the_bytes_of_stages_are_those_of_their_tensors() -> None:
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(inplace=True), nn.Linear(20, 5)).double()
    (cost,) = split(model, stages=1, example_input=torch.zeros(4, 10, dtype=torch.float64)).costs
    assert cost.input == 4 * 10 * 8
    assert cost.activations == (4 * 10 + 4 * 20) * 8  # the input, and the ReLU's output, saved twice
    assert cost.weights == 2 * sum(p.numel() for p in model.parameters()) * 8


def test_a_model_on_the_meta_device_is_cut_without_its_memory() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(models.WIDTH, models.WIDTH) for _ in range(4)))
    stages = split(model, stages=4, example_input=torch.zeros(2, models.WIDTH))
    assert all(parameter.is_meta for stage in stages for parameter in stage.parameters())
    assert [list(stage.state_dict()) for stage in stages] == [[f"{i}.weight", f"{i}.bias"] for i in range(4)]


def test_the_table_names_the_first_operation_of_each_stage() -> None:
    stages = split(nn.Sequential(nn.Linear(4, 4), nn.Tanh()), stages=2, example_input=torch.zeros(2, 4))
    head, _, first, second = str(stages).splitlines()
    assert " ".join(head.split()) == ("stage begins with forward ms backward ms receives activations weights")
    assert (first.split()[:2], second.split()[:2]) == (["0", "0"], ["1", "1"])


@pytest.mark.parametrize(
    ("model", "count", "message"),
    [
        (
            models.Moded(),
            2,
            "the forward method of Moded cannot be recorded, so cut the model by hand: it asks whether it is",
        ),
        (
            models.Branch(),
            2,
            "the forward method of Branch cannot be recorded, so cut the model by hand: it needs the values",
        ),
        (
            nn.Sequential(nn.Linear(6, 6), nn.Tanh()),
            3,
            "the model can be cut into 2 stages at most, not into 3",
        ),
        (nn.Linear(6, 6), 0, "stages is 0, must be at least 1"),
    ],
)
def test_a_model_that_cannot_be_cut_is_an_error(model: nn.Module, count: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        split(model, stages=count, example_input=torch.zeros(2, 6))


@pytest.mark.parametrize(
    ("name", "schedule", "depth"),
    [("u-net", "gems", 3), ("named", "gpipe", 2), ("shared", "gems", 2)],
)
def test_a_pipeline_of_these_stages_trains_as_the_undivided_model(
    name: str, schedule: str, depth: int
) -> None:
    names = set(models.make(name)[0].state_dict())
    results = worlds.run(depth, models.train, name, schedule, depth)
    assert set().union(*(own for own, _ in results)) == names
    assert all(first == results[0][1][0] for _, firsts in results for first in firsts)


def test_a_rank_makes_only_its_own_stage_of_a_model_on_the_meta_device() -> None:
    worlds.run(3, models.train_from_meta, 3)

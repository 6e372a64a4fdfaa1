"""The layers of a model get a plan's shares: in order, and never more workspace than the plan divides."""

import pytest
from needs_torch import torch

from mucudnn._native import Problem
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration
from mucudnn.torch.layers.convert import plans_of_layers

nn = torch.nn

LEAN = Configuration((MicroConfiguration(4, "LEAN", 2.0, 0),))
HUNGRY = Configuration((MicroConfiguration(4, "HUNGRY", 1.0, 4096),))


def planned(problem: Problem, count: int) -> PlanKernel:
    """Return a kernel one of whose `count` occurrences takes workspace."""
    shares = ((1, HUNGRY), (count - 1, LEAN))
    return PlanKernel(Kernel(problem, "forward"), count, LEAN, (LEAN, HUNGRY), shares)


def image(**other: object) -> Problem:
    defaults = {"in_channels": 4, "out_channels": 4, "input": (8, 8), "kernel": (3, 3)}
    return Problem(mini_batch=4, **{**defaults, **other})


def choices(plan: Plan, layers: list[nn.Module]) -> list[list[str]]:
    """Return the algorithms that each layer's plan chooses."""
    plans = [Plan.parse(text) for text in plans_of_layers(plan, layers)]
    assert all(kernel.shares == () for plan in plans for kernel in plan.kernels)
    return [[kernel.chosen.parts[0].algorithm for kernel in plan.kernels] for plan in plans]


def test_layers_take_their_shares_in_order_and_other_layers_take_none() -> None:
    layers = [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 8, 3), nn.Conv2d(4, 4, 3, padding="same"), nn.Conv2d(4, 4, 3)]
    assert choices(Plan({}, (planned(image(), 3),)), layers) == [["HUNGRY"], [], ["LEAN"], ["LEAN"]]


@pytest.mark.parametrize(
    ("problem", "layer"),
    [
        (image(input=(1, 8), kernel=(1, 3)), lambda: nn.Conv1d(4, 4, 3)),
        (image(input=(8, 8, 8), kernel=(3, 3, 3)), lambda: nn.Conv3d(4, 4, 3)),
        (image(stride=2, dilation=2), lambda: nn.Conv2d(4, 4, 3, stride=2, dilation=2)),
        (image(groups=4), lambda: nn.Conv2d(4, 4, 3, groups=4)),
    ],
    ids=["1-D", "3-D", "stride and dilation", "groups"],
)
def test_a_layer_is_recognised_by_what_its_input_cannot_change(problem: Problem, layer: object) -> None:
    others = [nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, (3, 1)), nn.Conv2d(4, 4, 3, stride=2)]
    chosen = choices(Plan({}, (planned(problem, 2),)), [*others, layer(), layer()])
    assert chosen == [[], [], [], ["HUNGRY"], ["LEAN"]]


def test_layers_that_may_run_other_kernels_all_take_the_least_workspace() -> None:
    """Make three layers for a kernel that the plan counts twice: nothing says which one has another input."""
    layers = [nn.Conv2d(4, 4, 3) for _ in range(3)]
    assert choices(Plan({}, (planned(image(), 2),)), layers) == [["LEAN"]] * 3


def test_without_shares_all_layers_follow_the_plan_itself() -> None:
    plan = Plan({"device": "a device"}, (PlanKernel(Kernel(image(), "forward"), 2, LEAN, (LEAN,)),))
    assert plans_of_layers(plan, [nn.Conv2d(4, 4, 3), nn.Conv1d(1, 1, 1)]) == [str(plan)] * 2

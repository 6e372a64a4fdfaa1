"""`split` gives stages that compute what the model does, or refuses, whatever the model's code looks at."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import needs_torch  # noqa: F401
import numpy as np
import pytest
import split_kinds as kinds
import torch
import worlds
from pipeline_cases import run
from torch import Tensor, nn

from mucudnn.errors import UsageError
from mucudnn.torch.pipeline import Split, split
from mucudnn.torch.tracing.saved import tensors_in

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


def example(samples: int = 4, seed: int = 1) -> Tensor:
    return torch.randn(samples, kinds.WIDTH, generator=torch.Generator().manual_seed(seed))


def step(model: Callable[[Tensor], Any], parameters: list[nn.Parameter], x: Tensor, seed: int) -> list[Any]:
    """Return the outputs of a step and the gradients."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    outputs = tensors_in(model(x))
    trained = [output for output in outputs if output.requires_grad]
    ones = [torch.ones_like(output) for output in trained]
    return [*outputs, *torch.autograd.grad(trained, parameters, ones, allow_unused=True)]


def state_of(model: nn.Module) -> tuple[str, list[Tensor]]:
    attributes = [sorted(vars(layer)) for layer in model.modules()]
    numbers = [v for layer in model.modules() for v in vars(layer).values() if isinstance(v, int | float)]
    gradients = [parameter.grad for parameter in model.parameters()]
    others = attributes, numbers, gradients, torch.is_grad_enabled(), random.getstate(), np.random.get_state()
    tensors = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
    return str(others), [*tensors, torch.get_rng_state()]


def compare_steps(original: nn.Module, stages: Split) -> None:
    """Raise AssertionError unless both compute the same, step by step, in all modes and with new inputs."""
    names = dict(original.named_parameters())
    owners = {key: p for stage in stages for key, p in stage.named_parameters()}
    for number in range(12):
        for module in (original, *stages):
            module.train(number < 6)
        x = example(samples=(4, 2, 5)[number % 3], seed=number) * (-1) ** number
        with torch.autocast("cpu", enabled=number % 6 > 2):
            expected = step(original, list(names.values()), x, number)
            actual = step(partial(run, stages), [owners[name] for name in names], x, number)
        torch.testing.assert_close(actual, expected)
    state = original.state_dict()
    own = [stage.state_dict() for stage in stages]
    assert set().union(*own) == set(state)
    torch.testing.assert_close([{name: state[name] for name in part} for part in own], [dict(s) for s in own])


@pytest.mark.parametrize("is_inside", [False, True], ids=["model", "inside"])
@pytest.mark.parametrize("name", kinds.KINDS)
def test_stages_compute_what_the_model_does_or_are_refused(name: str, is_inside: bool) -> None:
    model = kinds.make(name, is_inside)
    parameter = next(model.parameters())
    parameter.grad = torch.ones_like(parameter)
    original, before = copy.deepcopy(model), state_of(model)
    stages, refusal = None, "cut by hand"
    try:
        stages = split(model, stages=2, example_input=example())
    except UsageError as error:
        refusal = str(error)
    assert "by hand" in refusal
    others, tensors = state_of(model)
    assert others == before[0]
    torch.testing.assert_close(tensors, before[1], rtol=0, atol=0)
    if stages is not None:
        compare_steps(original, stages)


@pytest.mark.parametrize("name", ["OwnGradient", "HookedGradient"])
def test_the_same_holds_on_the_meta_device(name: str) -> None:
    with torch.device("meta"):
        model = kinds.make(name, is_inside=False)
    with pytest.raises(UsageError, match="by hand"):
        split(model, stages=2, example_input=example())


@pytest.mark.parametrize(
    "name", ["OwnGradient", "Counter", "PythonRandom", "Mode", "ByValue", "BySize", "AutocastOff"]
)
def test_a_module_stays_whole_if_its_code_does_what_a_stage_could_not_repeat(name: str) -> None:
    model = kinds.make(name, is_inside=True)
    stages = split(model, stages=3, example_input=example())
    assert "inner" in operations_of(stages)
    with pytest.raises(UsageError, match=r"into 4 stages at most, .*: inner stays whole, because it "):
        split(model, stages=5, example_input=example())


@pytest.mark.parametrize("name", ["IsInstance", "IsTensor", "NoGrad", "FrozenLayer", "SetGradEnabled"])
def test_a_module_is_cut_if_a_stage_can_repeat_what_its_code_does(name: str) -> None:
    stages = split(kinds.make(name, is_inside=True), stages=5, example_input=example())
    assert {"inner.first", "inner.last"} <= operations_of(stages)


def operations_of(stages: Split) -> set[str]:
    return {operation.name for stage in stages for operation in stage.split_operations}


def test_the_error_names_the_first_difference() -> None:
    with pytest.raises(UsageError) as refusal:
        split(kinds.make("TypeIs", is_inside=False), stages=2, example_input=example())
    assert str(refusal.value).startswith(
        "the stages would not compute what TypeIs does. The first difference, behind the result of first "
        "in stage 0: the result of last in stage 1 is off by "
    )


def refuse_on_every_rank() -> str:
    with pytest.raises(UsageError) as refusal:
        split(kinds.make("TypeIs", is_inside=False), stages=2, example_input=example())
    return str(refusal.value)


def test_every_rank_refuses() -> None:
    first, second = worlds.run(2, refuse_on_every_rank)
    assert "The first difference" in first
    assert second == f"rank 0 failed: {first}"

"""Training steps under memory plans, and what they leave behind: gradients, running statistics, the peak."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from needs_torch import mt, torch
from torch import Tensor, nn

from mucudnn.arrays.call import PassCall, geometry
from mucudnn.arrays.dispatch import Prepared
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.modelled_device import find_device
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.problems.descriptor import Problem
from mucudnn.torch.operators import passes

WORKSPACE = 2**20
LOSS_BYTES = 2 * 512  # PyTorch allocates 512 bytes for a number: the loss, and its gradient 1


@dataclass
class Observed:
    """The outcome of one training step. `peak` counts parameters, buffers, the input, and the step."""

    output: Tensor
    gradients: list[Tensor]
    buffers: list[Tensor]
    peak: int

    def equals(self, other: Observed) -> bool:
        """Return whether all results are equal, bit by bit."""
        pairs = zip(
            (self.output, *self.gradients, *self.buffers),
            (other.output, *other.gradients, *other.buffers),
            strict=True,
        )
        return all(torch.equal(mine, theirs) for mine, theirs in pairs)


def differentiate(output: Tensor) -> None:
    """Differentiate the sum of an output's squares. No plan counts the LOSS_BYTES."""
    output.square().sum().backward()


def train(model: nn.Module, x: Tensor, autocast: bool = False) -> Observed:
    """Make one training step from the same state. Return copies of its results on the host."""
    state = {name: value.clone().cpu() for name, value in model.state_dict().items()}
    gc.collect()
    own = sum(
        _rounded(tensor) for tensor in (*model.parameters(), *model.buffers(), x)
    )  # a plan counts these, but no other tensors of the program
    others = torch.cuda.memory_allocated() - own + LOSS_BYTES
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast("cuda", torch.float16, autocast):
        output = model(x)
    differentiate(output)
    peak = torch.cuda.max_memory_allocated() - others
    observed = Observed(
        output.detach().cpu(),
        [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None],
        [buffer.cpu() for buffer in model.buffers()],
        peak,
    )
    model.zero_grad(set_to_none=True)
    model.load_state_dict(state)
    return observed


def plan_for(model: nn.Module, x: Tensor, part: float, **options: Any) -> MemoryPlan:
    """Return a plan for this part of the way from the floor to the peak without a limit.

    Kernels are measured. Copies and other operations have the times of a modelled device, because measuring
    these takes long on a CPU.
    """
    with quick_rates():
        settings = {"workspace": WORKSPACE, "bandwidth": 5e9} | options
        free = mt.plan_memory(model, x, memory=2**40, **settings)
        memory = int(free.floor + part * (free.peak - free.floor))
        try:
            return mt.plan_memory(model, x, memory=memory, **settings)
        except NothingFitsError:
            return mt.plan_memory(model, x, memory=int(free.floor * 1.02), **settings)


@contextmanager
def quick_rates() -> Iterator[None]:
    name = torch.cuda.get_device_name()
    with patch(
        "mucudnn.torch.training.plan_memory.measure_rates",
        lambda _: replace(find_device("titanx"), name=name),
    ):
        yield


def _rounded(tensor: Tensor) -> int:
    """Return the bytes that PyTorch's allocator takes for a tensor."""
    return -(-tensor.untyped_storage().nbytes() // 512) * 512


def quick_plan(model: nn.Module, x: Tensor, policy: str = "all", **options: Any) -> MemoryPlan:
    """Return a plan at the floor without kernels and on modelled costs, for tests of the tensors alone."""
    settings: dict[str, Any] = {"policy": policy, "device": "titanx"} | options
    if "memory" not in settings:
        settings["memory"] = mt.plan_memory(model, x, memory=2**40, **settings).floor
    plan = mt.plan_memory(model, x, **settings)
    return replace(plan, kernels=(), device=torch.cuda.get_device_name())


def warnings_of(model: nn.Module, x: Tensor, expected: Observed) -> list[str]:
    """Make two steps, which must give the expected results. Return the warnings."""
    with noted_warnings() as messages:
        assert train(model, x).equals(expected)
        assert train(model, x).equals(expected)
    return messages


@contextmanager
def noted_warnings() -> Iterator[list[str]]:
    """Yield a list that has the warnings of mucudnn after the context."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [str(warning.message) for warning in caught if "mucudnn" in str(warning.message)]


@contextmanager
def noted_kernels() -> Iterator[set[tuple[Problem, str]]]:
    """Yield a set that collects the kernels that mucudnn's operators run, as problems and passes."""
    kernels: set[tuple[Problem, str]] = set()

    def note(call: PassCall, *operands: Any, **options: Any) -> Prepared:
        kernels.add((geometry(call)[0], call.pass_))
        return ready_of(call, *operands, **options)

    ready_of = passes.ready_of
    with patch.object(passes, "ready_of", note):
        yield kernels

"""A training step under a memory plan keeps the promise that the plan was made with.

It runs on the CPU, without streams: the host engine computes, and copies to host memory are made at once.
"""

import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_on_cpu import run_on_cpu
from needs_torch import mt, torch

from mucudnn.costs.cache import Cache
from mucudnn.errors import UsageError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.modelled_device import DEVICES, find_device
from mucudnn.measuring.runners import Race
from mucudnn.plans.memory import costs
from mucudnn.plans.memory.costs import measure_costs
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.memory.planning import MemoryOptions, plan_trace
from mucudnn.promises import Promise
from mucudnn.torch.tracing.trace import trace_model

nn = torch.nn
LIMIT = 2**20
INVARIANT = Promise(batch_invariant=True)
Make = Callable[[nn.Module, torch.Tensor, Promise], MemoryPlan]


@pytest.fixture(autouse=True)
def _on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    run_on_cpu(monkeypatch)
    monkeypatch.setenv("MUCUDNN_LIBRARY", "host")


@pytest.fixture
def plan_at_floor(tmp_path: Path) -> Make:
    """Return a function that plans a step at the floor, with kernels measured on the host engine."""

    def plan(model: nn.Module, x: torch.Tensor, promise: Promise) -> MemoryPlan:
        trace = trace_model(model, x, strict=promise.is_strict)
        engine = open_engine("host", torch.get_num_threads())
        modelled = find_device("h200")
        with Cache.open(tmp_path / "cache.sqlite") as cache:
            bench = Bench(engine, cache, Listener(), Race())
            costs = measure_costs(
                trace.network, bench, modelled, modelled.link_of(), promise=promise, limit=LIMIT
            )
        options = MemoryOptions(2**40, workspace=LIMIT, promise=promise)
        costs = replace(costs, device="h200")
        floor = plan_trace(trace, costs, options).floor
        return MemoryPlan.parse(str(plan_trace(trace, costs, replace(options, memory=floor))))

    return plan


class Net(nn.Module):
    """Layers whose activations a plan at the floor moves or computes again."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 5, padding=2), nn.Conv2d(16, 4, 1)
        self.second, self.third = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.first(x).relu()).tanh()
        return self.last(self.third(x.relu()).tanh())


def step(model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the result and the gradient of the input."""
    x = x.clone().requires_grad_()
    y = model(x)
    y.backward(y.detach())
    assert x.grad is not None
    return y.detach(), x.grad


def test_a_sample_has_the_same_bits_in_planned_steps_of_each_size(plan_at_floor: Make) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(8, 3, 40, 40)
    plan = plan_at_floor(model, x.requires_grad_(), INVARIANT)
    assert {tensor.choice for tensor in plan.tensors} != {"keep"}
    x = x.detach()
    whole = step(mt.apply(copy.deepcopy(model), plan), x)
    converted = mt.convert(copy.deepcopy(model), batch_invariant=True, workspace=LIMIT)
    assert all(map(torch.equal, step(converted, x), whole))
    for n, first in ((1, 0), (3, 5)):
        own = x[first : first + n].requires_grad_()
        part = step(mt.apply(copy.deepcopy(model), plan_at_floor(model, own, INVARIANT)), own.detach())
        assert all(
            torch.equal(tensor, all_[first : first + n]) for tensor, all_ in zip(part, whole, strict=True)
        )


@pytest.mark.parametrize("promise", [Promise("strict"), Promise("strict", True)])
def test_a_strict_step_keeps_a_nan_in_its_windows(promise: Promise, plan_at_floor: Make) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3, 40, 40)
    plan = plan_at_floor(model, x.requires_grad_(), promise)
    assert all(kernel.kernel.problem.math == "strict" for kernel in plan.kernels)
    x = x.detach()
    x[0, 1, 20, 20] = torch.nan
    y, dx = step(mt.apply(model, plan), x)
    # The filters reach 4 elements to each side, forwards and again backwards.
    assert y[0].isnan().any(0).sum() == 9 * 9
    assert dx[0].isnan().any(0).sum() == 17 * 17
    assert not y[1].isnan().any()


def test_the_plan_says_what_it_promises(plan_at_floor: Make, tmp_path: Path) -> None:
    plan = plan_at_floor(Net(), torch.randn(2, 3, 40, 40), INVARIANT)
    assert plan.header == {"promise": "batch_invariant", "workspace_limit": "1MiB"}
    assert plan.for_module("first").promise == INVARIANT
    assert plan_at_floor(Net(), torch.randn(2, 3, 40, 40), Promise()).header == {}


def plan_fixed(
    model: nn.Module, x: torch.Tensor, patch: pytest.MonkeyPatch, gpu: str, **more: Any
) -> MemoryPlan:
    """Return a plan as on a GPU of this name, with fixed choices, on which nothing can be measured."""
    own = sys.modules["mucudnn.torch.training.plan_memory"]
    patch.setattr(torch.cuda, "get_device_name", lambda *_: gpu)
    patch.setattr(own, "device_of", lambda model: torch.device("cpu"))
    engine = open_engine("host", torch.get_num_threads())
    patch.setattr(own, "device_named", lambda name: SimpleNamespace(engine=engine))
    for module, names in ((own, ("measure_rates", "measure_link")), (costs, ("benchmark",))):
        for name in names:
            patch.setattr(module, name, None)
    return mt.plan_memory(model, x, memory="1GiB", workspace=LIMIT, choice="fixed", **more)


def test_a_plan_with_fixed_choices_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(2, 3, 40, 40)
    plans = []
    for name in ("one", "other"):
        monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / f"{name}.sqlite"))
        plans.append(plan_fixed(model, x, monkeypatch, "NVIDIA H100 80GB HBM3"))
    assert plans[0] == plans[1]
    assert plans[0].for_module("first").promise == Promise(choice="fixed")
    assert plans[0].device == "NVIDIA H100 80GB HBM3"
    assert plans[0].sources == {
        "kernels": "modelled", "steps": "modelled", "link": "modelled", "device": DEVICES["h100"].source,
    }  # fmt: skip
    assert all(map(torch.equal, *(step(mt.apply(copy.deepcopy(model), plan), x) for plan in plans)))
    with_bandwidth = plan_fixed(model, x, monkeypatch, "a GPU", bandwidth=1e9, batch_invariant=True)
    assert with_bandwidth.sources["link"] == "given"
    assert with_bandwidth.sources["device"] == DEVICES["h200"].source
    assert with_bandwidth.for_module("first").promise == Promise(batch_invariant=True, choice="fixed")


def test_a_modelled_device_shows_nothing_about_batches() -> None:
    with pytest.raises(UsageError, match="'h100' is only modelled"):
        mt.plan_memory(Net(), torch.randn(2, 3, 40, 40), memory="1GiB", device="h100", batch_invariant=True)
    plan = mt.plan_memory(Net(), torch.randn(2, 3, 40, 40), memory="1GiB", device="h100", numerics="strict")
    assert plan.header["promise"] == "numerics=strict"
    assert not any("WINOGRAD" in part.algorithm for kernel in plan.kernels for part in kernel.chosen.parts)

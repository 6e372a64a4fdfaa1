from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from math import inf
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import torch

# The files whose models compare steps: in all others the engine runs every one.
_WITH_COMPARISON = (
    *("test_torch_as_stock", "test_torch_step_comparison", "test_torch_compared_models"),
    *("test_torch_left_steps", "test_torch_shared_models", "test_torch_conclusion", "test_torch_remeasure"),
    *("test_torch_benchmark", "test_torch_demo"),
)
_PACED = "test_torch_pace", "test_torch_patience"
_WITH_STOCK = "test_torch_stock", "test_torch_patience"


@pytest.fixture(scope="module", autouse=True)
def _one_cache(one_cache: None) -> None:
    """Give each file of this folder a cache of its own."""


@pytest.fixture(scope="module", autouse=True)
def _measured_at_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the first call with a shape be measured, so that these tests need not repeat their calls."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("torch") is not None and request.module.__name__ != "test_torch_new_shapes":
            from mucudnn.torch.choosing.sightings import Sightings

            patch.setattr(Sightings, "earns_measuring", lambda *_: True)
        yield


@pytest.fixture(scope="module", autouse=True)
def _decided_at_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let decisions take any time, because the steps of these tests are too short to earn it."""
    with pytest.MonkeyPatch.context() as patch:
        if request.module.__name__ not in _PACED:
            from mucudnn.measuring.budget import PacedBudget

            patch.setattr(PacedBudget, "is_spent", False)
            patch.setattr(PacedBudget, "most_wait_ms", inf)
        yield


@pytest.fixture(scope="module", autouse=True)
def _engine_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let STOCK seem slow, so that these tests run the engine; the files of its own tests set its times."""
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("torch") is not None and request.module.__name__ not in _WITH_STOCK:
            from mucudnn.measuring.source import StockTiming
            from mucudnn.torch.choosing.step_comparison import StepComparison
            from mucudnn.torch.operators import stock

            slow = StockTiming(1e6, workspace=2**50)
            patch.setattr(stock, "random_tensors", lambda device, problem, samples: ())
            patch.setattr(stock.TorchTimer, "__init__", lambda timer, device, kernel, tensors: None)
            patch.setattr(stock.TorchTimer, "measure", lambda timer, size, is_slice, **_: slow)
            patch.setattr(stock.TorchTimer, "tensors", lambda timer, engine: None)
            if request.module.__name__ not in _WITH_COMPARISON:
                patch.setattr(StepComparison, "follow", lambda *_: False)
        yield


@pytest.fixture
def network() -> torch.nn.Module:
    import torch
    from small_network import Network

    torch.manual_seed(1)
    return Network().eval()


@pytest.fixture
def undivided_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let memory plans for an H200 run on the CPU, with PyTorch's own convolutions."""
    from memory_on_cpu import run_on_cpu

    from mucudnn.torch.training import apply

    run_on_cpu(monkeypatch)
    monkeypatch.setattr(apply, "_divide", lambda *_: None)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """Compile each graph of a test anew, and take mucudnn's pass out of Inductor afterwards."""
    import torch

    config = pytest.importorskip("torch._inductor.config")
    torch.compiler.reset()
    pass_before = config.post_grad_custom_pre_pass
    with config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        yield
    config.post_grad_custom_pre_pass = pass_before

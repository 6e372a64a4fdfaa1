"""`will_it_fit` counts what PyTorch's own tracker counts, and `largest_batch` is the largest that fits."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

import mucudnn.torch as mt
from mucudnn.errors import UsageError
from mucudnn.measuring.modelled_device import ModelledDevice
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.fit import largest
from mucudnn.plans.memory.training_step import Costs
from mucudnn.problems.network import Network
from mucudnn.solver import Configuration
from mucudnn.torch.training import fit


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.block = nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)
        )
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last((x + self.block(x)).mean((2, 3)))


def wide() -> nn.Module:
    """Return a model whose parameters take more memory than its activations."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4096), nn.ReLU(), nn.Linear(4096, 1024))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (16, 3, 64, 64)),
    "wide": (wide, (4, 3, 16, 16)),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
}


def tracked_peak(make: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: str) -> int:
    """Return the peak of two training steps by PyTorch's tracker."""
    with FakeTensorMode():
        model, x = make(), torch.empty(shape)
        updates, tracker = OPTIMIZERS[optimizer](model.parameters()), MemTracker()
        tracker.track_external(model, updates, x)
        with tracker:
            for _ in range(2):
                model(x).sum().backward()
                updates.step()
                updates.zero_grad()
                tracker.reset_mod_stats()
        return sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_that_of_pytorchs_tracker(
    name: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = MODELS[name]
    x = torch.empty(shape, device="meta")
    with_workspace = mt.will_it_fit(make(), x, optimizer=optimizer)
    monkeypatch.setattr(fit, "model_costs", without_workspaces)  # the tracker does not see them
    exact = mt.will_it_fit(make(), x, optimizer=optimizer)
    assert exact.peak == pytest.approx(tracked_peak(make, shape, optimizer), rel=0.03)
    assert exact.peak <= with_workspace.peak
    for each in exact, with_workspace:
        assert sum(each.parts.values()) == each.peak >= each.floor


def without_workspaces(network: Network, device: ModelledDevice) -> Costs:
    costs = model_costs(network, device)
    free = {
        kernel: Configuration((replace(choice.parts[0], workspace=0),))
        for kernel, choice in costs.undivided.items()
    }
    return replace(costs, undivided=free)


def test_an_optimizer_counts_as_it_is() -> None:
    model, x = wide(), torch.empty(4, 3, 16, 16, device="meta")
    names = ("sgd", "momentum", "adam", "adamw", "adafactor", "adam8bit")
    by_name = {name: mt.will_it_fit(model, x, optimizer=name).parts["optimizer"] for name in names}
    elements = sum(parameter.numel() for parameter in model.parameters())
    assert by_name["momentum"] >= 4 * elements
    assert by_name["adam"] == by_name["adamw"] >= 8 * elements
    assert by_name["adam8bit"] < by_name["adam"] / 2
    assert by_name["adafactor"] < by_name["adam"]
    own = torch.optim.Adam(model.parameters(), amsgrad=True)
    assert mt.will_it_fit(model, x, optimizer=own).parts["optimizer"] >= by_name["adam"] + 4 * elements
    assert own.state == {}


def test_the_largest_batch_fits_and_a_larger_one_does_not() -> None:
    model, x = Residual(), torch.empty(8, 3, 64, 64)
    batches = {}
    for plan in (False, True):
        n = batches[plan] = mt.largest_batch(
            model, x, memory="64MiB", device="h100", optimizer="adam", plan=plan
        )

        def fits(size: int, plan: bool = plan) -> bool:
            own = torch.empty(size, 3, 64, 64, device="meta")
            found = mt.will_it_fit(model, own, memory="64MiB", device="h100", optimizer="adam")
            return found.fits_with_plan if plan else found.fits

        assert fits(n)
        assert not fits(n + 1)
    assert batches[True] > batches[False]
    assert mt.largest_batch(model, x, memory=1000) == 0


@pytest.mark.parametrize("true_up_to", [0, 1, 2, 3, 17, 64, 1000])
@pytest.mark.parametrize("guess", [0, 1, 5, 64, 2000])
def test_the_search_finds_the_largest_number_from_any_guess(true_up_to: int, guess: int) -> None:
    assert largest(lambda size: size <= true_up_to, guess) == true_up_to


def test_wrong_arguments_are_explained() -> None:
    model, x = Residual(), torch.empty(2, 3, 8, 8)
    with pytest.raises(UsageError, match="optimizer is 'newton': there are sgd, momentum"):
        mt.will_it_fit(model, x, optimizer="newton")
    with pytest.raises(UsageError, match="'h9000' is not a modelled device"):
        mt.will_it_fit(model, x, device="h9000")

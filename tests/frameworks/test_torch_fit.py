"""`will_it_fit` counts what PyTorch's own tracker counts, and `largest_batch` is the largest that fits."""

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.parallel import DistributedDataParallel

import mucudnn.torch as mt
from bench.lib.models import resnet18, resnet50, vgg16
from examples.unet3d import UNet3d
from mucudnn.errors import UsageError
from mucudnn.measuring.modelled_device import ModelledDevice, find_device
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


def plain() -> nn.Module:
    """Return convolutions, norms, a pooling and activations that work in place."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(32, 64, 3, 1, 1, bias=False), nn.GroupNorm(8, 64), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 100),
    )  # fmt: skip


def separable() -> nn.Module:
    """Return depthwise and pointwise convolutions."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1)]
    for channels in (32, 64, 128):
        layers += [nn.Conv2d(channels, channels, 3, 1, 1, groups=channels), nn.BatchNorm2d(channels)]
        layers += [nn.Hardswish(), nn.Conv2d(channels, 2 * channels, 1), nn.GELU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def upsampling() -> nn.Module:
    """Return a decoder."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1), nn.LeakyReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(64, 32, 3, 1, 1),
        nn.InstanceNorm2d(32, affine=True), nn.ELU(), nn.ConvTranspose2d(32, 16, 2, 2), nn.Tanh(),
        nn.Conv2d(16, 3, 1),
    )  # fmt: skip


def volume() -> nn.Module:
    """Return a network of volumes."""
    return nn.Sequential(
        nn.Conv3d(1, 16, 3, 1, 1), nn.InstanceNorm3d(16), nn.LeakyReLU(), nn.MaxPool3d(2),
        nn.Conv3d(16, 32, 3, 1, 1), nn.BatchNorm3d(32), nn.ReLU(), nn.ConvTranspose3d(32, 16, 2, 2),
        nn.Conv3d(16, 2, 1),
    )  # fmt: skip


def signal() -> nn.Module:
    """Return a network of signals."""
    return nn.Sequential(
        nn.Conv1d(4, 64, 7, 2, 3), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 64, 5, padding=2),
        nn.Sigmoid(), nn.AvgPool1d(4), nn.Flatten(), nn.Linear(64 * 128, 16),
    )  # fmt: skip


def tokens() -> nn.Module:
    """Return linear layers and norms on tokens."""
    return nn.Sequential(
        nn.Linear(48, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(0.1),
        nn.LayerNorm(64), nn.Linear(64, 10), nn.LogSoftmax(-1),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (16, 3, 64, 64)),
    "wide": (wide, (4, 3, 16, 16)),
    "plain": (plain, (16, 3, 64, 64)),
    "separable": (separable, (8, 3, 64, 64)),
    "upsampling": (upsampling, (4, 3, 32, 32)),
    "volume": (volume, (2, 1, 24, 24, 24)),
    "signal": (signal, (16, 4, 1024)),
    "tokens": (tokens, (8, 49, 48)),
    "resnet18": (resnet18, (4, 3, 96, 96)),
    "resnet50": (resnet50, (4, 3, 96, 96)),
    "vgg16": (vgg16, (2, 3, 64, 64)),
    "unet3d": (UNet3d, (1, 1, 32, 32, 32)),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
}


def tracked_peak(
    make: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: str, is_cast: bool, accumulates: bool
) -> int:
    """Return the peak of two training steps by PyTorch's tracker."""
    with FakeTensorMode():
        model, x = make(), torch.empty(shape)
        updates, tracker = OPTIMIZERS[optimizer](model.parameters()), MemTracker()
        tracker.track_external(model, updates, x)
        with tracker:
            for number in range(2 if not accumulates else 4):
                with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
                    y = model(x)
                y.sum().backward()
                del y
                if number % 2 or not accumulates:
                    updates.step()
                    updates.zero_grad()
                tracker.reset_mod_stats()
        return sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())


# MUCUDNN_FIT=all tries every combination of a model and a way to train it, which is slow.
EVERY = 1 if os.environ.get("MUCUDNN_FIT") == "all" else 13  # each model and each way
WAYS = list(itertools.product(MODELS, OPTIMIZERS, (False, True), (False, True)))


@pytest.mark.parametrize(
    ("name", "optimizer", "is_cast", "accumulates"),
    WAYS[::EVERY],
)
def test_the_peak_is_that_of_pytorchs_tracker(
    name: str, optimizer: str, is_cast: bool, accumulates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = MODELS[name]
    x = torch.empty(shape, device="meta")
    more: dict[str, Any] = {"optimizer": optimizer, "accumulate": accumulates}
    more["autocast"] = torch.bfloat16 if is_cast else None
    with_workspace = mt.will_it_fit(make(), x, **more)
    monkeypatch.setattr(fit, "model_costs", without_workspaces)  # the tracker does not see them
    exact = mt.will_it_fit(make(), x, **more)
    counted = exact.peak - exact.parts["context"]
    assert counted == pytest.approx(tracked_peak(make, shape, optimizer, is_cast, accumulates), rel=0.03)
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
    factored = torch.optim.Adafactor(made := [parameter.detach().clone() for parameter in model.parameters()])
    for parameter in made:
        parameter.grad = torch.ones_like(parameter)
    factored.step()
    moments = [value for values in factored.state.values() for value in values.values() if value.dim() > 0]
    state = sum(moment.nbytes for moment in moments)
    counted = fit._bytes_of(model, "adafactor").state
    assert state <= counted <= state + 512 * len(moments)  # in blocks of 512 bytes
    own = torch.optim.Adam(model.parameters(), amsgrad=True)
    assert mt.will_it_fit(model, x, optimizer=own).parts["optimizer"] >= by_name["adam"] + 4 * elements
    assert own.state == {}


def test_the_largest_batch_fits_and_a_larger_one_does_not() -> None:
    model, x = Residual(), torch.empty(8, 3, 64, 64)
    batches = {}
    for plan in (False, True):
        n = batches[plan] = mt.largest_batch(
            model, x, memory="912MiB", device="h100", optimizer="adam", plan=plan
        )

        def fits(size: int, plan: bool = plan) -> bool:
            own = torch.empty(size, 3, 64, 64, device="meta")
            found = mt.will_it_fit(model, own, memory="912MiB", device="h100", optimizer="adam")
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
    with pytest.raises(UsageError, match="LBFGS depends on its history"):
        mt.will_it_fit(model, x, optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(UsageError, match="'h9000' is not a modelled device"):
        mt.will_it_fit(model, x, device="h9000")


def test_the_buckets_of_ddp_are_counted_unless_they_are_the_gradients(tmp_path: Path) -> None:
    x = torch.empty(4, 3, 16, 16, device="meta")
    alone = mt.will_it_fit(wide(), x)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1, timeout=timedelta(seconds=60)
    )
    try:
        for is_view, part in ((False, alone.parts["parameters"]), (True, 0)):
            fit = mt.will_it_fit(DistributedDataParallel(wide(), gradient_as_bucket_view=is_view), x)
            assert fit.parts["buckets"] == part
            assert (fit.peak, fit.floor) == (alone.peak + part, alone.floor + part)
    finally:
        torch.distributed.destroy_process_group()


def test_cuda_takes_its_part_of_the_memory() -> None:
    x = torch.empty(2, 3, 16, 16, device="meta")
    fit = mt.will_it_fit(wide(), x, device="h200")
    assert fit.parts["context"] == find_device("h200").context
    assert not mt.will_it_fit(wide(), x, memory=fit.floor - 1, device="h200").fits_with_plan
    assert mt.will_it_fit(wide(), x, memory=fit.peak, device="h200").fits


@pytest.mark.parametrize("accumulates", [False, True])
def test_gradients_of_earlier_steps_are_in_memory_from_the_start(accumulates: bool) -> None:
    # At the peak, in the middle of the backward pass, a step alone has few gradients.
    make, shape = MODELS["resnet18"]
    fit = mt.will_it_fit(make(), torch.empty(shape, device="meta"), accumulate=accumulates)
    assert (fit.parts["gradients"] >= fit.parts["parameters"]) is accumulates

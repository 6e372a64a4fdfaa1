"""`will_it_fit` counts what PyTorch's own tracker counts, and `largest_batch` is the largest that fits."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from fit_networks import EVERY, MODELS, OPTIMIZERS, WAYS, Residual, training_steps, wide, without_workspaces
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.parallel import DistributedDataParallel

import mucudnn.torch as mt
from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.measuring.modelled_device import find_device
from mucudnn.torch.training import fit


def tracked_peak(
    make: Callable[[], nn.Module], shape: tuple[int, ...], optimizer: str, is_cast: bool, accumulates: bool
) -> int:
    """Return the peak of two training steps by PyTorch's tracker, with the casts of a GPU."""
    with FakeTensorMode(), fit.CastsOfGpu():
        model, x = make(), torch.empty(shape)
        updates, tracker = OPTIMIZERS[optimizer](model.parameters()), MemTracker()
        tracker.track_external(model, updates, x)
        with tracker:
            for _ in training_steps(model, x, updates, is_cast=is_cast, accumulates=accumulates):
                tracker.reset_mod_stats()
        return sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())


@pytest.mark.parametrize(
    ("name", "optimizer", "is_cast", "accumulates"),
    WAYS[:: 1 if EVERY else 13],  # each model and each way
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
    counted = exact.peak - exact.parts["context"] - exact.parts["fragmentation"]
    assert counted == pytest.approx(tracked_peak(make, shape, optimizer, is_cast, accumulates), rel=0.03)
    assert exact.peak <= with_workspace.peak
    for each in exact, with_workspace:
        assert sum(each.parts.values()) == each.peak >= each.floor
        assert each.reserved >= each.peak
        assert min(each.parts.values()) >= 0


@pytest.mark.parametrize("name", MODELS)
def test_an_inference_counts_what_pytorchs_tracker_counts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape = MODELS[name]
    monkeypatch.setattr(fit, "model_costs", without_workspaces)  # the tracker does not see them
    x = torch.empty(shape, device="meta")
    counted = mt.will_it_fit(make().eval(), x, training=False)
    with FakeTensorMode(), torch.no_grad():
        model, example = make().eval(), torch.empty(shape)
        tracker = MemTracker()
        tracker.track_external(model, example)
        with tracker:
            y = model(example)
        tracked = sum(kinds["Total"] for kinds in tracker.get_tracker_snapshot("peak").values())
        del y
    peak = counted.peak - counted.parts["context"] - counted.parts["fragmentation"]
    assert peak == pytest.approx(tracked, rel=0.03)
    assert counted.parts["gradients"] == 0


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
    counted = fit._update_of(model, "adafactor").state
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
            fit = mt.will_it_fit(model, own, memory="912MiB", device="h100", optimizer="adam")
            return fit.fits_with_plan if plan else fit.fits

        assert fits(n)
        assert not fits(n + 1)
    assert batches[True] > batches[False]
    assert mt.largest_batch(model, x, memory=2000) == 0


def test_wrong_arguments_are_explained() -> None:
    model, x = Residual(), torch.empty(2, 3, 8, 8)
    with pytest.raises(UsageError, match="optimizer is 'newton': there are sgd, momentum"):
        mt.will_it_fit(model, x, optimizer="newton")
    with pytest.raises(UsageError, match="are of a training step"):
        mt.will_it_fit(model, x, optimizer="adam", training=False)
    with pytest.raises(UsageError, match="LBFGS depends on its history"):
        mt.will_it_fit(model, x, optimizer=torch.optim.LBFGS(model.parameters()))
    with pytest.raises(UsageError, match="'h9000' is not a modelled device"):
        mt.will_it_fit(model, x, device="h9000")
    with pytest.raises(ArgumentTypeError, match=r"memory is 1\.5: give bytes"):
        mt.will_it_fit(model, x, memory=1.5)  # type: ignore[arg-type]


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
    said = [str(mt.will_it_fit(wide(), x, memory=size, device="h200")) for size in (fit.floor - 1, fit.peak)]
    assert "does not fit" in said[0]
    assert "It fits:" in said[1]


@pytest.mark.parametrize("accumulates", [False, True])
def test_gradients_of_earlier_steps_are_in_memory_from_the_start(accumulates: bool) -> None:
    # At the peak, in the middle of the backward pass, a step alone has few gradients.
    make, shape = MODELS["resnet18"]
    fit = mt.will_it_fit(make(), torch.empty(shape, device="meta"), accumulate=accumulates)
    assert (fit.parts["gradients"] >= fit.parts["parameters"]) is accumulates


def test_autocast_casts_what_it_casts_on_a_gpu() -> None:
    # On a GPU norms and softmax save their argument in 32 bits. On the CPU they save it in 16 bits.
    x = torch.empty(2**16, 64, device="meta")
    for norm in (nn.LayerNorm(64), nn.GroupNorm(8, 64), nn.Softmax(-1)):
        model = nn.Sequential(nn.Linear(64, 64), norm, nn.Linear(64, 64))
        counted = mt.will_it_fit(model, x, autocast=torch.float16).parts["activations"]
        with torch.autocast("cpu", torch.float16):
            on_cpu = mt.will_it_fit(model, x).parts["activations"]
        assert counted >= on_cpu + 2 * x.numel(), norm

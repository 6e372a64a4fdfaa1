"""Whole networks under memory plans whose kernels are measured: equal results, and the predicted peak.

CI runs a small one. MEMORY_SUITE=all runs all of them in all variants, which takes long.
"""

import os
from pathlib import Path

import pytest
from memory_networks import NETWORKS, make
from memory_steps import noted_kernels, noted_warnings, plan_for, quick_plan, train
from needs_torch import mt, torch
from torch import nn

from bench.lib.record import Record, append, describe_machine
from bench.suites.gpu.torch_memory import undecided
from bench.tables import PEAKS
from mucudnn.plans.memory.plan import MemoryPlan

pytestmark = pytest.mark.gpu

VARIANTS = ("plain", "channels_last", "autocast")
ALL = [(network, variant) for network in NETWORKS for variant in VARIANTS]
CASES = ALL if os.environ.get("MEMORY_SUITE") == "all" else [("net", "plain"), ("net", "autocast")]


@pytest.mark.usefixtures("only_with_late_streams")
@pytest.mark.parametrize(("network", "variant"), CASES)
def test_a_network_trains_in_the_planned_memory_with_equal_results(network: str, variant: str) -> None:
    model, x = make(network, channels_last=variant == "channels_last")
    is_cast = variant == "autocast"
    stock = train(model, x, is_cast)
    with torch.autocast("cuda", torch.float16, is_cast):
        plan = plan_for(model, x, 0.2)
    assert {tensor.choice for tensor in plan.tensors} > {"keep"}

    tolerance = 0.05 if network == "net" else 0.03  # in a small network one buffer of a kernel counts more
    mt.apply(model, undecided(plan))
    same_kernels = train(model, x, is_cast)
    mt.apply(model, plan)
    with noted_kernels() as kernels, noted_warnings() as warned:
        for _ in range(2):
            observed = train(model, x, is_cast)
            assert observed.equals(same_kernels)
            assert observed.peak <= plan.memory
            assert observed.peak == pytest.approx(plan.peak, rel=tolerance)
    assert not warned
    assert kernels
    assert kernels <= {(planned.kernel.problem, planned.kernel.pass_) for planned in plan.kernels}
    _note(f"{network}, {variant}", observed.peak, plan, stock.peak)
    if network == "vgg16" and not is_cast:  # casts take half of the activations, and none of the weights
        assert observed.peak <= 0.70 * stock.peak


def _note(case: str, measured: int, plan: MemoryPlan, stock: int) -> None:
    """Append the measured peak, relative to three others, to the file that MEMORY_FIGURES names."""
    if not os.environ.get("MEMORY_FIGURES"):
        return
    details = {"measured_bytes": measured}
    append(
        Path(os.environ["MEMORY_FIGURES"]),
        describe_machine(device=torch.cuda.get_device_name(), library=f"PyTorch {torch.__version__}"),
        *(
            Record("memory steps", case, metric, measured / size, "x", details | {"bytes": size})
            for metric, size in zip(PEAKS, (plan.peak, plan.memory, stock), strict=True)
        ),
    )


@pytest.mark.usefixtures("only_with_late_streams")
def test_transposed_convolutions_run_the_planned_kernels() -> None:
    torch.manual_seed(1)
    up = nn.ConvTranspose2d(8, 6, 2, stride=2)
    first, last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(6, 4, 3)
    model = nn.Sequential(first, nn.ReLU(), up, last, nn.AdaptiveAvgPool2d(1)).cuda()
    x = torch.randn(8, 3, 16, 16, device="cuda")
    plan = plan_for(model, x, 0.3)
    stock = train(model, x)
    mt.apply(model, plan)
    with noted_kernels() as kernels, noted_warnings() as warned:
        observed = train(model, x)
    assert not warned
    assert kernels == {(planned.kernel.problem, planned.kernel.pass_) for planned in plan.kernels}
    assert len(kernels) == 8  # two passes of the first convolution, three of the others
    assert observed.peak == pytest.approx(plan.peak, rel=0.03)
    torch.testing.assert_close(observed.output, stock.output, rtol=1e-4, atol=1e-4)
    mt.restore(model)
    assert type(up) is nn.ConvTranspose2d


@pytest.mark.usefixtures("only_with_cuda")
def test_a_side_stream_can_be_the_compute_stream() -> None:
    model, x = make("net")
    expected = train(model, x)
    mt.apply(model, quick_plan(model, x))
    with torch.cuda.stream(torch.cuda.Stream()):
        assert train(model, x).equals(expected)

"""The costs of a memory plan with fixed choices come from models alone."""

from pathlib import Path

import pytest
from fake_engine import FakeEngine

from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.modelled_device import DEVICES, device_like, modelled_configurations
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.memory.costs import measure_costs
from mucudnn.problems.layers import Layers
from mucudnn.promises import Promise


class FakeGpu(FakeEngine):
    kind = "cudnn"


def test_times_on_a_gpu_are_those_of_the_roofline_in_the_order_of_the_heuristics() -> None:
    layers, device, engine = Layers(8, 16, 14, 14), DEVICES["h100"], FakeGpu()
    network = layers.finish(layers.convolution("conv", layers.input, 16, 3, padding=1))
    with Cache.in_memory(Path("none")) as cache:
        bench = Bench(engine, cache, Listener(), Exhaustive())
        costs = measure_costs(network, bench, device, device.link_of(), promise=Promise(choice="fixed"))
    assert not engine.calls["measure"]
    assert costs.sources["kernels"] == costs.summary == "modelled"
    for kernel, chosen in costs.kernels.items():
        roofline = modelled_configurations(device, kernel, "undivided")[-1].time_ms
        (part,) = costs.undivided[kernel].parts
        assert part.algorithm == "LEAN", "the heuristics name it first"
        assert roofline <= part.time_ms <= 1.1 * roofline
        assert costs.undivided[kernel] in chosen


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("Tesla T4", "t4"),
        ("Tesla P4", "h200"),
    ],
)
def test_a_gpu_has_the_rates_of_the_device_that_its_name_contains(gpu: str, name: str) -> None:
    assert device_like(gpu) is DEVICES[name]

"""The bundled networks have the sizes that their papers and the paper of vDNN give."""

from __future__ import annotations

import pytest

from bench.lib.baseline import baseline_bytes
from mucudnn.errors import UsageError
from mucudnn.problems.bundled import NETWORKS, bundled_network
from mucudnn.problems.kernels import Flags, read_kernels

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("alexnet", 61.10), ("overfeat", 145.92), ("googlenet", 7.00), ("vgg16", 138.36), ("resnet18", 11.69),
        ("resnet50", 25.56), ("unet3d", 19.08), ("convnext", 28.58),
    ],
)  # fmt: skip
def test_the_number_of_parameters_is_right(name: str, millions: float) -> None:
    assert bundled_network(name, 1).bytes_of("parameter") / 4e6 == pytest.approx(millions, abs=0.01)


# Rhu et al., vDNN, 2016, figure 1: weights and features, and their gradients, in memory at once.
@pytest.mark.parametrize(
    ("name", "batch", "gibibytes"),
    [
        ("alexnet", 128, 1.15), ("overfeat", 128, 2.17), ("googlenet", 128, 5.39),
        ("vgg16", 64, 8.3), ("vgg16", 128, 15.6), ("vgg16", 256, 30.1),
    ],
)  # fmt: skip
def test_the_baseline_is_that_of_the_paper(name: str, batch: int, gibibytes: float) -> None:
    assert baseline_bytes(bundled_network(name, batch)) / GIB == pytest.approx(gibibytes, rel=0.03)


@pytest.mark.parametrize("name", ["alexnet", "vgg16", "resnet18", "resnet50", "convnext", "unet3d"])
def test_its_kernels_are_those_of_the_bundled_list(name: str) -> None:
    listed = {kernel: kernel.count for kernel in read_kernels(name, Flags(batch=2), ("forward",))}
    built = {kernel: kernel.count for kernel in bundled_network(name, 2).kernels()}
    assert built == listed


@pytest.mark.parametrize("name", NETWORKS)
def test_it_can_be_trained(name: str) -> None:
    assert bundled_network(name, 1).with_backward().saved


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match="'vgg19' is not a bundled network: did you mean vgg16"):
        bundled_network("vgg19", 1)

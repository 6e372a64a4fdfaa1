"""The bundled networks have the sizes that their papers and the paper of vDNN give."""

from pathlib import Path

import pytest
from networks import bytes_of

from mucudnn.errors import UsageError
from mucudnn.problems import sources
from mucudnn.problems.bundled import bundled_network
from mucudnn.problems.kernels import PASSES
from mucudnn.problems.network import Network
from mucudnn.problems.sources import TRAINABLE, Flags, bundled_networks, read_kernels, read_network
from mucudnn.problems.steps import FLOATING

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("alexnet", 61.10), ("overfeat", 145.92), ("googlenet", 7.00), ("vgg16", 138.36), ("resnet18", 11.69),
        ("resnet50", 25.56), ("unet3d", 19.08), ("convnext", 28.58),
    ],
)  # fmt: skip
def test_the_number_of_parameters_is_right(name: str, millions: float) -> None:
    assert bytes_of(bundled_network(name, 1), "parameter") / 4e6 == pytest.approx(millions, abs=0.01)


def baseline_bytes(forward: Network) -> int:
    """Return the bytes of weights and features, and of as many gradients, all at once.

    Features are the input and the results of all layers, each memory counted once. A step that only joins
    other tensors has none: its sources are written into one memory. Indices of max pooling do not count.
    """
    return 2 * (bytes_of(forward, "parameter") + _feature_bytes(forward))


def _feature_bytes(forward: Network) -> int:
    """Return the bytes of the features."""
    overwritten = {tensor.in_place_of for tensor in forward.tensors}
    joined = {
        name
        for step in forward.steps
        if len(step.reads) > 1 and not step.kernels and not step.saves and not _is_sum(forward, step.reads)
        for name in step.writes
    }
    return sum(
        tensor.bytes
        for tensor in forward.tensors
        if tensor.kind in ("activation", "input", "output")
        and tensor.data_type in FLOATING
        and tensor.name not in overwritten | joined
    )


def _is_sum(forward: Network, names: tuple[str, ...]) -> bool:
    return len({forward.tensor(name).shape for name in names}) == 1


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


@pytest.mark.parametrize("name", TRAINABLE)
def test_its_kernels_and_its_training_step_are_read_by_the_same_name(name: str) -> None:
    listed = {kernel: kernel.count for kernel in read_kernels(name, Flags(batch=2, dtype="f16"), PASSES)}
    trained = {kernel: kernel.count for kernel in read_network(name, Flags(2, "f16")).kernels()}
    assert listed == trained


def test_each_file_of_layers_has_a_name_that_commands_take() -> None:
    files = Path(sources.__file__).parent.glob("networks/*.layers")
    assert {file.stem for file in files} == {name.removesuffix("-2014") for name in TRAINABLE}


@pytest.mark.parametrize("name", sorted({*bundled_networks()} - {*TRAINABLE}))
def test_a_list_of_convolutions_has_no_training_step(name: str) -> None:
    assert read_kernels(name, Flags(), PASSES)
    with pytest.raises(UsageError, match=r"is a list of convolutions without .*: give alexnet"):
        read_network(name, Flags())

"""The networks, settings and figures of the whole-network table, and the order in which they are measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

# Each network's kind and the shape of one sample. Within a setting they are measured in this order.
NETWORKS: dict[str, tuple[str, tuple[int, ...]]] = {
    "resnet18": ("residual", (3, 224, 224)),
    "squeezenet1_1": ("inception-like", (3, 224, 224)),
    "mobilenet_v2": ("depthwise", (3, 224, 224)),
    "vgg11": ("plain", (3, 224, 224)),
    "convnext_tiny": ("depthwise", (3, 224, 224)),
    "googlenet": ("inception-like", (3, 224, 224)),
    "resnext50_32x4d": ("residual, grouped", (3, 224, 224)),
    "densenet121": ("dense", (3, 224, 224)),
    "inception_v3": ("inception-like", (3, 299, 299)),
    "r3d_18": ("3-D, residual", (3, 8, 64, 64)),
    "maxvit_t": ("transformer hybrid", (3, 224, 224)),
    "deeplabv3_mobilenet_v3_large": ("encoder-decoder, dilated", (3, 224, 224)),
    "unet3d": ("3-D, encoder-decoder", (1, 32, 32, 32)),
    "efficientnet_b0": ("depthwise", (3, 224, 224)),
    "shufflenet_v2_x1_0": ("depthwise", (3, 224, 224)),
}
DEFAULT = (
    "resnet18", "squeezenet1_1", "mobilenet_v2", "vgg11", "convnext_tiny", "googlenet", "r3d_18", "unet3d",
)  # fmt: skip
# In mini-batches of this many samples the 2-D images have half the width and height. With whole images, these
# cases would take most of a day.
LARGEST = 64
# These networks are not measured in the largest mini-batch, since their images would stay whole: maxvit_t
# accepts one size only, and r3d_18 has small 3-D ones. A training step would take about 20 s.
_NOT_WITH_LARGEST = ("r3d_18", "maxvit_t")
LIMIT = "64MiB"
LIMITS = (LIMIT, "8MiB", "512MiB")
SPEEDUP, FIRST, PEAK = "speedup over stock", "first step in stock steps", "peak memory over stock"


class Case(NamedTuple):
    """A network with a mini-batch, a number of threads, and a mode: training or inference."""

    network: str
    batch: int
    threads: int
    inference: bool

    @property
    def setting(self) -> str:
        """All but the network."""
        mode = "inference" if self.inference else "training"
        return f"{mode}, N={self.batch}, {self.threads} thread{'' if self.threads == 1 else 's'}"

    def __str__(self) -> str:
        return f"{self.network}, {self.setting}"


def sample_shape(network: str, batch: int) -> tuple[int, ...]:
    """Return the shape of one sample, without the mini-batch's dimension: (channels, *sizes).

    It is smaller in the largest mini-batch.
    """
    channels, *sizes = NETWORKS[network][1]
    if batch == LARGEST and len(sizes) == 2:
        sizes = [math.ceil(size / 2) for size in sizes]
    return channels, *sizes


def name(case: Case, limit: str) -> str:
    """Return the name of a row: its records have it as their case."""
    return f"{case}, {limit}"


def cases(*, everything: bool = True) -> Iterator[Case]:
    """Yield the eight networks of DEFAULT with N=16 on two threads, or else every case.

    The most important setting comes first, then those that take the least time.
    """
    settings = [  # mini-batch, threads, whether it is inference
        (16, 2, False), (16, 2, True), (1, 2, True), (1, 2, False), (1, 1, True), (1, 1, False),
        (16, 1, True), (16, 1, False), (LARGEST, 2, True), (LARGEST, 2, False), (LARGEST, 1, True),
        (LARGEST, 1, False),
    ]  # fmt: skip
    for batch, threads, inference in settings if everything else settings[:2]:
        for network in NETWORKS if everything else DEFAULT:
            case = Case(network, batch, threads, inference)
            if _is_measured(case):
                yield case


def _is_measured(case: Case) -> bool:
    """Return whether the table has rows for a case."""
    if case.batch == 1 and not case.inference:
        # DeepLab pools each image to one pixel. PyTorch's batch normalization refuses to train on one value.
        return not case.network.startswith("deeplabv3")
    return case.batch != LARGEST or case.network not in _NOT_WITH_LARGEST


def parts_of(name: str) -> tuple[str, str, str]:
    """Return the network, the setting and the limit in the name of a row."""
    network, mode, batch, threads, limit = name.split(", ", 4)
    return network, f"{mode}, {batch}, {threads}", limit

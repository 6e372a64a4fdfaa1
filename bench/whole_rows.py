"""The networks, settings and figures of the whole-network table, and the order in which they are measured."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

# Each network's kind and the shape of one sample. The first nine are measured before the others, in order.
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
    "r3d_18": ("3-D, residual", (3, 8, 112, 112)),
    "maxvit_t": ("transformer hybrid", (3, 224, 224)),
    "deeplabv3_resnet50": ("encoder-decoder, dilated", (3, 224, 224)),
    "unet3d": ("3-D, encoder-decoder", (1, 32, 32, 32)),
    "efficientnet_b0": ("depthwise", (3, 224, 224)),
    "shufflenet_v2_x1_0": ("depthwise", (3, 224, 224)),
}
LIMITS = ("64MiB", "8MiB", "512MiB")
SPEEDUP, FIRST, PEAK = "speedup over stock", "first step in stock steps", "peak memory over stock"


class Row(NamedTuple):
    """A row of the table."""

    network: str
    batch: int
    threads: int
    inference: bool
    limit: str
    tune: str = "eager"

    def __str__(self) -> str:
        mode = "inference" if self.inference else "training"
        plural = "" if self.threads == 1 else "s"
        tune = "" if self.tune == "eager" else f", {self.tune}"
        return f"{self.network}, {mode}, N={self.batch}, {self.threads} thread{plural}, {self.limit}{tune}"


def rows() -> Iterator[Row]:
    """Yield all rows, the most important first."""
    settings = [  # mini-batch, threads, whether it is inference
        (16, 2, False), (16, 1, False), (16, 2, True), (1, 2, True), (64, 2, False), (16, 1, True),
        (64, 2, True), (1, 2, False), (64, 1, False), (1, 1, True), (64, 1, True), (1, 1, False),
    ]  # fmt: skip
    first, *others = LIMITS
    for batch, threads, inference in settings:
        for network in NETWORKS:
            yield Row(network, batch, threads, inference, first)
        if (batch, threads, inference) == settings[0]:
            for network in list(NETWORKS)[:3]:
                yield Row(network, batch, threads, inference, first, "background")
    for (batch, threads, inference), limit, network in product(settings, others, NETWORKS):
        yield Row(network, batch, threads, inference, limit)

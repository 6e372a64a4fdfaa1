"""The kernels, sizes and columns of the GPU bench, on a GPU and in a dry run without one."""

from __future__ import annotations

from dataclasses import dataclass

from mucudnn.problems.kernels import Kernel
from mucudnn.problems.sources import Flags, read_kernels

MIB = 2**20
NCHW = {  # column -> data type, layout, math; the most informative first
    "fp16 NCHW": ("f16", "nchw", "default"),
    "TF32 NCHW": ("f32", "nchw", "tf32"),
    "bf16 NCHW": ("bf16", "nchw", "default"),
    "fp32 NCHW": ("f32", "nchw", "fma"),
}
COLUMNS = {
    **NCHW,
    "fp16 NHWC": ("f16", "nhwc", "default"),
    "bf16 NHWC": ("bf16", "nhwc", "default"),
    "TF32 NHWC": ("f32", "nhwc", "tf32"),
    "fp32 NHWC": ("f32", "nhwc", "fma"),
}


@dataclass(frozen=True)
class Setting:
    """The choice of kernels and sizes for one engine."""

    engine: str
    device: str  # PyTorch's name of the device
    batch: int  # the mini-batch of the networks' kernels
    cliff: tuple[int, int, int]  # the channels, size and stride of a convolution
    cliff_batches: tuple[int, ...]
    networks: tuple[str, ...]  # the networks that are trained
    planned: tuple[str, ...]  # the networks that are trained under memory plans
    steps: int  # timed training steps; the first step is timed apart
    checked: str  # the descriptor of the kernels whose results are compared
    most_kernels: int | None = None  # kernels that are taken of each network, the cheapest ones; None for all

    def kernels(self, network: str, column: str, passes: tuple[str, ...]) -> list[Kernel]:
        """Return a bundled network's kernels in a column's data type, layout and math.

        First layers, with fewer than 16 channels, come last. With `most_kernels` the cheapest come first.
        """
        kernels = read_kernels(network, Flags(self.batch, *COLUMNS[column]), passes)
        if self.most_kernels is None:
            return sorted(kernels, key=lambda kernel: kernel.problem.in_channels < 16)
        return sorted(kernels, key=lambda kernel: kernel.problem.flops)[: self.most_kernels]


# The cliff is that of pytorch#128936: from 64 samples on, x has more than 2^31 elements.
GPU = Setting(
    engine="cudnn",
    device="cuda",
    batch=256,
    cliff=(128, 513, 2),
    cliff_batches=(63, 64),
    networks=("resnet50", "resnet18", "unet3d"),
    planned=("resnet50", "vgg16"),
    steps=10,
    checked="mb32_ic192ih13_oc384_kh3_ph1",  # AlexNet's conv3
)
HOST = Setting(
    engine="host",
    device="cpu",
    batch=4,
    cliff=(4, 33, 2),
    cliff_batches=(3, 4),
    networks=("resnet18", "resnet50", "unet3d"),
    planned=("resnet50",),
    steps=1,
    checked="mb8_ic8ih13_oc8_kh3_ph1",
    most_kernels=1,
)

"""What is measured: on a GPU, and in a dry run on a machine without one."""

from __future__ import annotations

from dataclasses import dataclass

from mucudnn.problems.kernels import Flags, Kernel, read_kernels

MIB = 2**20
NCHW = {  # name: data type, layout, math; the most telling first
    "fp16 NCHW": ("f16", "nchw", "default"),
    "TF32 NCHW": ("f32", "nchw", "tf32"),
    "bf16 NCHW": ("bf16", "nchw", "default"),
    "fp32 NCHW": ("f32", "nchw", "strict"),
}
COLUMNS = {
    **NCHW,
    "fp16 NHWC": ("f16", "nhwc", "default"),
    "bf16 NHWC": ("bf16", "nhwc", "default"),
    "TF32 NHWC": ("f32", "nhwc", "tf32"),
    "fp32 NHWC": ("f32", "nhwc", "strict"),
}


@dataclass(frozen=True)
class Convolution:
    """A convolution of square images as a program calls it; without padding where it has a stride."""

    channels: int
    size: int
    stride: int

    @property
    def descriptor(self) -> str:
        """Of one with a 3x3 kernel in bf16."""
        padding = 0 if self.stride > 1 else 1
        out = (self.size + 2 * padding - 3) // self.stride + 1
        geometry = f"ic{self.channels}ih{self.size}_oc{self.channels}oh{out}"
        return f"bf16:nchw:default:{geometry}_kh3_sh{self.stride}_ph{padding}"


@dataclass(frozen=True)
class Setting:
    """Sizes and names; `most` is how many kernels of each network are taken, the cheapest, or all."""

    engine: str
    device: str  # as PyTorch calls it
    batch: int
    cliff: Convolution
    cliff_batches: tuple[int, ...]
    swept: Convolution
    swept_batches: tuple[int, ...]  # with the engine; programs take each up to the largest
    networks: tuple[str, ...]  # trained
    steps: int  # after the first
    checked: str  # the descriptor whose results are looked at
    most: int | None = None

    def kernels(self, network: str, column: str, passes: tuple[str, ...]) -> list[Kernel]:
        """Of a bundled network, in one column's data type, layout and math; first layers come last."""
        kernels = read_kernels(network, Flags(self.batch, *COLUMNS[column]), passes)
        if self.most is None:
            return sorted(kernels, key=lambda kernel: kernel.problem.in_channels < 16)
        return sorted(kernels, key=lambda kernel: kernel.problem.flops)[: self.most]


# pytorch#128936: at 64 samples x has 2^31 elements and more.
GPU = Setting(
    engine="cudnn",
    device="cuda",
    batch=256,
    cliff=Convolution(channels=128, size=513, stride=2),
    cliff_batches=(63, 64),
    swept=Convolution(channels=64, size=56, stride=1),
    swept_batches=tuple(sorted({n for k in range(9) for n in (2**k - 1, 2**k, 2**k + 1)} - {0, 257})),
    networks=("resnet50", "resnet18", "unet3d"),
    steps=10,
    checked="mb32_ic192ih13_oc384_kh3_ph1",  # AlexNet's third
)
HOST = Setting(
    engine="host",
    device="cpu",
    batch=4,
    cliff=Convolution(channels=4, size=33, stride=2),
    cliff_batches=(3, 4),
    swept=Convolution(channels=4, size=14, stride=1),
    swept_batches=(1, 2, 3, 4),
    networks=("resnet18", "resnet50", "unet3d"),
    steps=1,
    checked="mb8_ic8ih13_oc8_kh3_ph1",
    most=1,
)

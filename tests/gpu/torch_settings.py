"""The settings in which PyTorch trains, the most important first. This module imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

# Bytes for one convolution. With sixteen images, the first 3×3 kernels of ResNet-18 need more for transposed
# copies, in 16 bits too, and its last ones less.
WORKSPACE = 6 * 2**20

EPSILON = {"f64": 2.0**-52, "fma": 2.0**-23, "tf32": 2.0**-10, "f16": 2.0**-10, "bf16": 2.0**-7}


@dataclass(frozen=True)
class Setting:
    """A way to train a network.

    `arithmetic` is strict or tf32 (for fp32 data), f16 (by autocast), bf16 (a converted model), or f64 for
    the reference. `mode` is eager, compile, graph (the step captured into a CUDA graph), or streams (two
    replicas at the same time).
    """

    network: str  # resnet18, unet3d, or small, for slow compilers
    arithmetic: str
    channels_last: bool = False
    mode: str = "eager"
    benchmark: bool = False
    api: str = "graph"

    @property
    def name(self) -> str:
        """The name of the setting. It is unique, and valid as a file name."""
        layout = "nhwc" if self.channels_last else "nchw"
        words = [self.network, self.arithmetic, layout, self.mode]
        return "-".join(words + ["benchmark"] * self.benchmark + ["legacy"] * (self.api == "legacy"))

    @property
    def reference(self) -> Setting:
        """The setting of the same network in fp64."""
        return Setting(self.network, "f64")


@dataclass(frozen=True)
class Group:
    """A group of settings that one process runs, one after the other.

    PyTorch keeps its choice for a convolution even if its flags change. So `benchmark` and the API are the
    same for the whole process.
    """

    name: str
    share: float  # share of the time; earlier groups leave their rest
    settings: tuple[Setting, ...]
    environment: tuple[tuple[str, str], ...] = ()
    kinds: tuple[str, ...] = ("plain", "mucudnn")


GROUPS = (
    Group(
        "reference",
        0.1,
        tuple(Setting(name, "f64") for name in ("small", "unet3d", "resnet18")),
        (),
        ("plain",),
    ),
    Group(
        "heuristics",
        0.45,
        (
            Setting("resnet18", "tf32"),
            Setting("resnet18", "bf16"),
            Setting("unet3d", "bf16"),
            Setting("resnet18", "bf16", mode="graph"),
            Setting("resnet18", "f16"),
            Setting("resnet18", "tf32", mode="streams"),
            Setting("unet3d", "f16", channels_last=True),
            Setting("resnet18", "bf16", channels_last=True),
            Setting("resnet18", "fma"),
            Setting("unet3d", "tf32"),
            Setting("unet3d", "fma"),
        ),
    ),
    Group(
        "benchmark",
        0.15,
        (
            Setting("resnet18", "bf16", benchmark=True),
            Setting("resnet18", "tf32", benchmark=True),
            Setting("unet3d", "f16", benchmark=True),
            Setting("unet3d", "tf32", channels_last=True, benchmark=True),
            Setting("resnet18", "fma", mode="graph", benchmark=True),
        ),
    ),
    Group(
        "legacy",
        0.12,
        (
            Setting("resnet18", "tf32", api="legacy"),
            Setting("resnet18", "bf16", api="legacy"),
            Setting("unet3d", "f16", api="legacy"),
            Setting("resnet18", "fma", api="legacy"),
        ),
        (("TORCH_CUDNN_V8_API_DISABLED", "1"),),
    ),
    Group(
        "compiler",
        0.18,
        (
            Setting("small", "bf16", mode="compile"),
            Setting("small", "f16", channels_last=True, mode="compile"),
        ),
    ),
)

ALL = {setting.name: setting for group in GROUPS for setting in group.settings}

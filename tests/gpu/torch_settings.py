"""The settings in which PyTorch trains, the most telling first. No torch is imported here."""

from __future__ import annotations

from dataclasses import dataclass

# For one convolution. On eight images ResNet-18's first 3×3 kernels need a little more for transposed copies
# in 16 bit, the others less.
WORKSPACE = 6 * 2**20

EPSILON = {"f64": 2.0**-52, "strict": 2.0**-23, "tf32": 2.0**-10, "f16": 2.0**-10, "bf16": 2.0**-7}


@dataclass(frozen=True)
class Setting:
    """One way to train a network.

    `arithmetic` is strict or tf32 (of fp32 data), f16 (by autocast), bf16 (the model converted) or f64, the
    reference. `mode` is eager, compile, graph (the step captured into a CUDA graph) or streams (two replicas
    at a time).
    """

    network: str  # resnet18, unet3d, or small, for what takes a compiler long
    arithmetic: str
    channels_last: bool = False
    mode: str = "eager"
    benchmark: bool = False
    api: str = "graph"

    @property
    def name(self) -> str:
        """Unique, and good as the name of a file."""
        layout = "nhwc" if self.channels_last else "nchw"
        words = [self.network, self.arithmetic, layout, self.mode]
        return "-".join(words + ["benchmark"] * self.benchmark + ["legacy"] * (self.api == "legacy"))

    @property
    def reference(self) -> Setting:
        """The same network in fp64."""
        return Setting(self.network, "f64")


@dataclass(frozen=True)
class Group:
    """Settings that one process runs, one after the other.

    What PyTorch has chosen for a convolution it keeps, whatever its flags say afterwards, so that `benchmark`
    and the API are the same for all of a process.
    """

    name: str
    share: float  # of the time; what is left of the others' before comes on top
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
        0.5,
        (
            Setting("resnet18", "tf32"),
            Setting("resnet18", "bf16"),
            Setting("unet3d", "bf16"),
            Setting("resnet18", "bf16", mode="graph"),
            Setting("resnet18", "f16"),
            Setting("resnet18", "tf32", mode="streams"),
            Setting("small", "bf16", mode="compile"),
            Setting("unet3d", "f16", channels_last=True),
            Setting("resnet18", "bf16", channels_last=True),
            Setting("resnet18", "strict"),
            Setting("unet3d", "tf32"),
            Setting("small", "f16", channels_last=True, mode="compile"),
            Setting("unet3d", "strict"),
        ),
    ),
    Group(
        "benchmark",
        0.2,
        (
            Setting("resnet18", "bf16", benchmark=True),
            Setting("resnet18", "tf32", benchmark=True),
            Setting("unet3d", "f16", benchmark=True),
            Setting("unet3d", "tf32", channels_last=True, benchmark=True),
            Setting("resnet18", "strict", mode="graph", benchmark=True),
        ),
    ),
    Group(
        "legacy",
        0.2,
        (
            Setting("resnet18", "tf32", api="legacy"),
            Setting("resnet18", "bf16", api="legacy"),
            Setting("unet3d", "f16", api="legacy"),
            Setting("resnet18", "strict", api="legacy"),
        ),
        (("TORCH_CUDNN_V8_API_DISABLED", "1"),),
    ),
)

ALL = {setting.name: setting for group in GROUPS for setting in group.settings}

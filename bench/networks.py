"""The kernels of the CPU figures: AlexNet's conv2 to conv5 and ResNet-18's 3x3 of stride 1, N=64; others."""

from __future__ import annotations

from mucudnn.problems.kernels import Flags, Kernel, read_kernels

DEEPBENCH = [f"deepbench:conv{number}" for number in (9, 11, 19, 24)]  # two of 3x3, two of 5x5


def kernels(pass_: str) -> list[Kernel]:
    """Each once, whatever its count in the network."""
    alexnet = [k for k in read_kernels("alexnet", Flags(), [pass_]) if not k.name.endswith("conv1")]
    resnet = [
        k
        for k in read_kernels("resnet18", Flags(), [pass_])
        if k.problem.kernel == (3, 3) and k.problem.stride == (1, 1)
    ]
    return [Kernel(k.problem, k.pass_, k.name) for k in alexnet + resnet]


def deepbench() -> list[Kernel]:
    """Some that take a second or less, at the largest mini-batch that DeepBench has, forward."""
    kernels = read_kernels("deepbench", Flags(batch=32), ("forward",))
    return [kernel for kernel in kernels if kernel.name in DEEPBENCH]

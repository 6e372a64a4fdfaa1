"""The kernels of the CPU figures: AlexNet's conv2 to conv5 and ResNet-18's 3x3 of stride 1, N=64."""

from __future__ import annotations

from mucudnn.kernels import Flags, Kernel, read_network


def kernels(pass_: str) -> list[Kernel]:
    """Each once, whatever its count in the network."""
    alexnet = [k for k in read_network("alexnet", Flags(), [pass_]) if not k.name.endswith("conv1")]
    resnet = [
        k
        for k in read_network("resnet18", Flags(), [pass_])
        if k.problem.kernel == (3, 3) and k.problem.stride == (1, 1)
    ]
    return [Kernel(k.problem, k.pass_, k.name) for k in alexnet + resnet]

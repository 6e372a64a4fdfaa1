"""The kernels of the CPU figures, from AlexNet, ResNet-18 and DeepBench."""

from __future__ import annotations

from mucudnn.problems.kernels import Flags, Kernel, read_kernels

DEEPBENCH = [f"deepbench:conv{number}" for number in (9, 11, 19, 24)]  # two 3x3 kernels, two 5x5 kernels


def kernels(pass_: str) -> list[Kernel]:
    """Return AlexNet's conv2 to conv5 and ResNet-18's 3x3 of stride 1 in one pass, N=64, with count 1."""
    alexnet = [k for k in read_kernels("alexnet", Flags(), [pass_]) if not k.name.endswith("conv1")]
    resnet = [
        k
        for k in read_kernels("resnet18", Flags(), [pass_])
        if k.problem.kernel == (3, 3) and k.problem.stride == (1, 1)
    ]
    return [Kernel(k.problem, k.pass_, k.name) for k in alexnet + resnet]


def deepbench() -> list[Kernel]:
    """Return four forward kernels of DeepBench at its largest mini-batch; each takes a second at most."""
    kernels = read_kernels("deepbench", Flags(batch=32), ("forward",))
    return [kernel for kernel in kernels if kernel.name in DEEPBENCH]

"""VGG-16 in training, on a roofline of the Titan X (Maxwell) of the vDNN paper.

7 TFLOP/s, 336 GB/s, 12.8 GB/s in each direction over PCIe. Gradients of activations are in the fixed bytes of
the steps that use them. The classifier and the input are not managed, as in the paper.
"""

from mucudnn.solver import Configuration, MicroConfiguration, desirable_set
from mucudnn.solver.memory.copies import Link
from mucudnn.solver.memory.training import KernelChoice, Replay, SavedTensor, StepCost, TrainingStep

FLOPS, BANDWIDTH, PCIE = 7e12, 336e9, 12.8e9
LAYERS = [
    64,
    64,
    "pool",
    128,
    128,
    "pool",
    256,
    256,
    256,
    "pool",
    512,
    512,
    512,
    "pool",
    512,
    512,
    512,
    "pool",
]
CLASSIFIER = 25088 * 4096 + 4096 * 4096 + 4096 * 1000
EFFICIENCY = 0.5  # the part of the peak that products of matrices reach


def algorithms(batch: int, inner: int, outer: int, width: int) -> list[MicroConfiguration]:
    """Return implicit GEMM, fused Winograd F(2x2, 3x3), and non-fused Winograd F(4x4, 3x3)."""
    flops = 2 * 9 * batch * inner * outer * width * width
    x, y, w = (4 * n for n in (batch * inner * width**2, batch * outer * width**2, 9 * inner * outer))
    gemm = flops / (EFFICIENCY * FLOPS) * 1e3
    transforms = int(2.25 * (x + y) + 4 * w)
    traffic = (x + y + w + 2 * transforms) / BANDWIDTH * 1e3
    return [
        MicroConfiguration(batch, "IMPLICIT_GEMM", gemm, 0),
        MicroConfiguration(
            batch, "WINOGRAD", gemm / 1.5, 16 * w // 9
        ),  # F(2x2, 3x3) needs 2.25 times fewer products
        MicroConfiguration(batch, "WINOGRAD_NONFUSED", gemm / 4 + traffic, transforms),
    ]


def configurations(
    batch: int, inner: int, outer: int, width: int, divided: bool
) -> tuple[Configuration, ...]:
    sizes = [batch >> power for power in range(batch.bit_length())] if divided else [batch]
    measured = [algorithm for size in sizes for algorithm in algorithms(size, inner, outer, width)]
    return tuple(desirable_set(measured, batch))


def vgg16(batch: int, *, divided: bool = True, bandwidth: float = PCIE) -> TrainingStep:
    """Return the steps: convolution and ReLU are two, forward and backward, ReLU works in place."""
    parameters = 4 * CLASSIFIER
    inner, width = 3, 224
    forward: list[tuple[str, int, int, int]] = []  # layer, bytes of input and output, kernel
    shapes: list[tuple[int, int, int, int]] = []
    sizes = [4 * batch * inner * width**2]
    for layer in LAYERS:
        if isinstance(layer, int):
            shapes.append((batch, inner, layer, width))
            parameters += 4 * 9 * inner * layer
            inner = layer
            sizes.append(4 * batch * inner * width**2)
            forward.append(("conv", sizes[-2], sizes[-1], len(shapes) - 1))
            forward.append(("relu", sizes[-1], sizes[-1], -1))
        else:
            width //= 2
            sizes.append(4 * batch * inner * width**2)
            forward.append(("pool", sizes[-2], sizes[-1], -1))
    always = 2 * parameters + sizes[0]  # weights, their gradients, the input
    last = 2 * len(forward) + 1

    steps: list[StepCost] = []
    kernels: list[KernelChoice] = []
    tensors: list[SavedTensor] = []
    produced = [at for at, (layer, *_) in enumerate(forward) if layer != "relu"]
    for at, (layer, before, after, kernel) in enumerate(forward):
        traffic = (before + after) / BANDWIDTH * 1e3 if layer != "conv" else 0.0
        steps.append(StepCost(traffic, always))
        if kernel >= 0:
            kernels.append(KernelChoice(at, configurations(*shapes[kernel], divided)))
    classifier = 2 * batch * CLASSIFIER / (EFFICIENCY * FLOPS) * 1e3
    steps += [StepCost(classifier, always), StepCost(2 * classifier, always + sizes[-1])]
    for at in range(len(forward) - 1, -1, -1):
        layer, before, after, kernel = forward[at]
        gradients = (
            after if layer == "relu" or at == 0 else before + after
        )  # ReLU in place, the input has none
        traffic = 1.5 * (before + after) / BANDWIDTH * 1e3 if layer != "conv" else 0.0
        steps.append(StepCost(traffic, always + gradients))
        if kernel >= 0:
            passes = 1 if at == 0 else 2
            both = KernelChoice(last - at, configurations(*shapes[kernel], divided))
            kernels += [both] * passes
    for i, at in enumerate(produced):
        layer, _, size, kernel = forward[at]
        reader = produced[i + 1] if i + 1 < len(produced) else len(forward)
        # A layer's output is read by its own backward steps, and by those of the next layer.
        after_relu = at + 1 if layer == "conv" else at
        time_ms = (
            configurations(*shapes[kernel], False)[0].time_ms if kernel >= 0 else 2.5 * size / BANDWIDTH * 1e3
        )
        tensors.append(
            SavedTensor(
                f"{layer}{at}",
                size,
                at,
                reader,
                last - reader,
                last - after_relu,
                Replay(time_ms, (i - 1,) if i else ()),
                is_kernel_input=reader < len(forward) and forward[reader][0] == "conv",
            )
        )
    return TrainingStep(tuple(steps), tuple(tensors), tuple(kernels), Link(bandwidth, bandwidth))

"""The bundled networks for the memory planner: forward networks for a mini-batch.

Sizes follow the papers, except that AlexNet, OverFeat and GoogLeNet are the variants of convnet-benchmarks,
which the vDNN paper trained. Names that end in -2014 are these networks as that paper counts their memory.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace

from mucudnn.errors import UsageError, shown
from mucudnn.problems.layers import Layers
from mucudnn.problems.network import Network
from mucudnn.problems.steps import Tensor

OF_2014 = "-2014"


def bundled_network(name: str, batch: int, data_type: str = "f32", layout: str = "nchw") -> Network:
    """Return the forward network of this name. Raises UsageError.

    In a network of 2014, a max pooling saves its result and no indices.
    """
    if name not in NETWORKS:
        near = difflib.get_close_matches(name.lower(), NETWORKS, n=1)
        hint = f": did you mean {near[0]}?" if near else "."
        raise UsageError(f"{shown(name)} is not a bundled network{hint} There are {', '.join(NETWORKS)}")
    build, shape = NETWORKS[name]
    by_indices = not name.endswith(OF_2014)
    layers = Layers(batch, *shape, data_type=data_type, layout=layout, pools_by_indices=by_indices)
    return layers.finish(build(layers, layers.input))


def training_step(name: str, batch: int, data_type: str = "f32", layout: str = "nchw") -> Network:
    """Return the training step of this network. Raises UsageError.

    In a network of 2014, the gradient of a ReLU that works in place is computed in place.
    """
    network = bundled_network(name, batch, data_type, layout).with_backward()
    if not name.endswith(OF_2014):
        return network
    overwritten = {f"{t.in_place_of}.grad": f"{t.name}.grad" for t in network.tensors if t.in_place_of}
    tensors = [
        replace(tensor, in_place_of=overwritten.get(tensor.name, tensor.in_place_of))
        for tensor in network.tensors
    ]
    return Network(tuple(tensors), network.steps)


def _classify(net: Layers, x: Tensor, *hidden: int) -> Tensor:
    for number, features in enumerate(hidden):
        x = net.relu(f"relu_fc{number}", net.linear(f"fc{number}", x, features))
    return net.linear("classifier", x, 1000)


def _convolve(
    net: Layers, name: str, x: Tensor, channels: int, size: int, stride: int = 1, padding: int = 0
) -> Tensor:
    """Add a convolution with a ReLU."""
    return net.relu(f"{name}.relu", net.convolution(name, x, channels, size, stride=stride, padding=padding))


def _alexnet(net: Layers, x: Tensor) -> Tensor:
    """Build the AlexNet with one tower: A. Krizhevsky, One weird trick, 2014."""
    x = net.max_pool("pool1", _convolve(net, "conv1", x, 64, 11, stride=4, padding=2), 3, 2)
    x = net.max_pool("pool2", _convolve(net, "conv2", x, 192, 5, padding=2), 3, 2)
    for number, channels in ((3, 384), (4, 256), (5, 256)):
        x = _convolve(net, f"conv{number}", x, channels, 3, padding=1)
    return _classify(net, net.max_pool("pool5", x, 3, 2), 4096, 4096)


def _overfeat(net: Layers, x: Tensor) -> Tensor:
    """Build OverFeat's fast network: P. Sermanet et al., OverFeat, 2014, table 1."""
    x = net.max_pool("pool1", _convolve(net, "conv1", x, 96, 11, stride=4), 2, 2)
    x = net.max_pool("pool2", _convolve(net, "conv2", x, 256, 5), 2, 2)
    for number, channels in ((3, 512), (4, 1024), (5, 1024)):
        x = _convolve(net, f"conv{number}", x, channels, 3, padding=1)
    return _classify(net, net.max_pool("pool5", x, 2, 2), 3072, 4096)


_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32), "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64), "4b": (160, 112, 224, 24, 64, 64), "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64), "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128), "5b": (384, 192, 384, 48, 128, 128),
}  # fmt: skip


def _googlenet(net: Layers, x: Tensor) -> Tensor:
    """Build GoogLeNet without its auxiliary classifiers: C. Szegedy et al., Going deeper, 2015, table 1."""
    x = net.max_pool("pool1", _convolve(net, "conv1", x, 64, 7, stride=2, padding=3), 3, 2, over_edge=True)
    x = _convolve(net, "conv2.reduce", net.response_norm("norm1", x), 64, 1)
    x = net.response_norm("norm2", _convolve(net, "conv2", x, 192, 3, padding=1))
    x = net.max_pool("pool2", x, 3, 2, over_edge=True)
    for name, (one, reduce3, three, reduce5, five, pooled) in _INCEPTIONS.items():
        if name in ("4a", "5a"):
            x = net.max_pool(f"pool{int(name[0]) - 1}", x, 3, 2, over_edge=True)
        first = _convolve(net, f"{name}.1x1", x, one, 1)
        y = _convolve(net, f"{name}.3x3.reduce", x, reduce3, 1)
        second = _convolve(net, f"{name}.3x3", y, three, 3, padding=1)
        y = _convolve(net, f"{name}.5x5.reduce", x, reduce5, 1)
        third = _convolve(net, f"{name}.5x5", y, five, 5, padding=2)
        y = net.max_pool(f"{name}.pool", x, 3, 1, padding=1)
        fourth = _convolve(net, f"{name}.project", y, pooled, 1)
        x = net.concatenate(name, first, second, third, fourth)
    return net.linear("classifier", net.average_pool("average", x), 1000)


def _vgg16(net: Layers, x: Tensor) -> Tensor:
    """Build VGG-16: K. Simonyan and A. Zisserman, Very deep convolutional networks, 2015, table 1."""
    for block, (channels, count) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for number in range(1, count + 1):
            x = _convolve(net, f"conv{block}_{number}", x, channels, 3, padding=1)
        x = net.max_pool(f"pool{block}", x, 2, 2)
    return _classify(net, x, 4096, 4096)


def _normed(net: Layers, name: str, x: Tensor, channels: int, size: int, stride: int = 1) -> Tensor:
    """Add a convolution with a batch norm."""
    x = net.convolution(name, x, channels, size, stride=stride, padding=size // 2, bias=False)
    return net.norm(f"{name}.norm", x)


def _resnet(counts: tuple[int, ...], bottleneck: bool) -> Callable[[Layers, Tensor], Tensor]:
    """Return the builder of a ResNet with these numbers of blocks: K. He et al., 2015, table 1."""

    def build(net: Layers, x: Tensor) -> Tensor:
        x = net.relu("relu1", _normed(net, "conv1", x, 64, 7, 2))
        x = net.max_pool("pool1", x, 3, 2, padding=1)
        for stage, count in enumerate(counts):
            width = 64 << stage
            for block in range(count):
                name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
                channels = 4 * width if bottleneck else width
                shortcut = x
                if x.shape[1] != channels or stride > 1:
                    shortcut = _normed(net, f"{name}.downsample", x, channels, 1, stride)
                if bottleneck:
                    y = net.relu(f"{name}.relu1", _normed(net, f"{name}.conv1", x, width, 1))
                    y = net.relu(f"{name}.relu2", _normed(net, f"{name}.conv2", y, width, 3, stride))
                    y = _normed(net, f"{name}.conv3", y, channels, 1)
                else:
                    y = net.relu(f"{name}.relu1", _normed(net, f"{name}.conv1", x, width, 3, stride))
                    y = _normed(net, f"{name}.conv2", y, channels, 3)
                x = net.relu(f"{name}.relu", net.add(f"{name}.add", y, shortcut))
        return net.linear("classifier", net.average_pool("average", x), 1000)

    return build


def _unet3d(net: Layers, x: Tensor) -> Tensor:
    """Build the 3-D U-Net without padding: Ö. Çiçek et al., 3D U-Net, 2016, figure 2."""
    skipped = []
    for level in range(1, 5):
        for number in (1, 2):
            channels = 16 * number << level
            name = f"down{level}.conv{number}"
            x = net.relu(f"{name}.relu", net.norm(f"{name}.norm", net.convolution(name, x, channels, 3)))
        if level < 4:
            skipped.append(x)
            x = net.max_pool(f"pool{level}", x, 2, 2)
    for level in (3, 2, 1):
        up = net.up_convolution(f"up{level}", x, x.shape[1])
        x = net.concatenate(f"up{level}.join", skipped[level - 1], up)
        for number in (1, 2):
            name = f"up{level}.conv{number}"
            x = net.convolution(name, x, 32 << level, 3)
            x = net.relu(f"{name}.relu", net.norm(f"{name}.norm", x))
    return net.convolution("out", x, 3, 1)


def _convnext(net: Layers, x: Tensor) -> Tensor:
    """Build ConvNeXt-T, with norms and linear layers on channels last: Z. Liu et al., A ConvNet, 2022."""

    def to_last(name: str, x: Tensor) -> Tensor:
        return net.permute(name, x, (x.shape[0], *x.shape[2:], x.shape[1]))

    def to_first(name: str, x: Tensor) -> Tensor:
        return net.permute(name, x, (x.shape[0], x.shape[-1], *x.shape[1:-1]))

    for stage, (width, count) in enumerate(((96, 3), (192, 3), (384, 9), (768, 3)), 1):
        if stage == 1:
            x = net.convolution("stem", x, width, 4, stride=4)
            x = net.norm("stem.norm", to_last("stem.last", x), channels=width)
            x = to_first("stem.first", x)
        else:
            x = net.norm(f"down{stage}.norm", to_last(f"down{stage}.last", x), channels=width // 2)
            x = net.convolution(f"down{stage}", to_first(f"down{stage}.first", x), width, 2, stride=2)
        for number in range(count):
            name = f"stage{stage}.{number}"
            y = net.convolution(f"{name}.depthwise", x, width, 7, padding=3, groups=width)
            y = net.norm(f"{name}.norm", to_last(f"{name}.last", y), channels=width)
            y = net.gelu(f"{name}.gelu", net.linear(f"{name}.wide", y, 4 * width, last_axis=True))
            y = net.linear(f"{name}.narrow", y, width, last_axis=True)
            x = net.add(f"{name}.add", x, to_first(f"{name}.first", y))
    x = net.norm("norm", net.average_pool("average", x), channels=768)
    return net.linear("classifier", x, 1000)


NETWORKS: dict[str, tuple[Callable[[Layers, Tensor], Tensor], tuple[int, ...]]] = {
    "alexnet": (_alexnet, (3, 224, 224)),
    "overfeat": (_overfeat, (3, 231, 231)),
    "googlenet": (_googlenet, (3, 224, 224)),
    "vgg16": (_vgg16, (3, 224, 224)),
    "resnet18": (_resnet((2, 2, 2, 2), False), (3, 224, 224)),
    "resnet50": (_resnet((3, 4, 6, 3), True), (3, 224, 224)),
    "unet3d": (_unet3d, (3, 116, 132, 132)),
    "convnext": (_convnext, (3, 224, 224)),
}
NETWORKS |= {f"{name}{OF_2014}": NETWORKS[name] for name in ("alexnet", "overfeat", "googlenet", "vgg16")}

"""The networks of the measured memory suite, in sizes that a CPU computes in a second."""

from collections.abc import Callable

from needs_torch import torch
from torch import Tensor, nn

from bench.lib.models import Bottleneck
from examples.unet3d import UNet3d

# VGG-16's convolutions by their multiple of the first one's width; 0 is a pooling.
_VGG16 = (1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0)


class Net(nn.Module):
    """Convolutions, norms, activations, a pooling and a shortcut; tests change `between`."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.last = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU())
        self.out = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))

    def between(self, x: Tensor) -> Tensor:
        """Return what the rest of the network gets."""
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, (N, 4)."""
        x = self.first(x)
        return self.out(self.last(self.between(self.second(x) + x)))


class ConvNextBlock(nn.Module):
    """ConvNeXt's block: a depthwise convolution, a norm, two linear layers with GELU, a scale, a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.activation = nn.GELU()
        self.scale = nn.Parameter(torch.full((width, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the branch and x, (N, width, H, W)."""
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.scale * self.narrow(self.activation(self.wide(inner))).permute(0, 3, 1, 2)


class AttentionBlock(nn.Module):
    """A convolution, and attention between all places, each with a shortcut, as in UNet2DModel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.three, self.last = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the branches and x, (N, width, H, W)."""
        x = x + self.conv(x).relu()
        q, k, v = self.three(x).flatten(2).unflatten(1, (3, 4, -1)).transpose(-1, -2).unbind(1)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.last(y.transpose(-1, -2).reshape_as(x))


def vgg16(width: int = 16, *, has_norms: bool = False, in_place: bool = True) -> nn.Sequential:
    """Return VGG-16's convolutional part and one linear layer."""
    layers: list[nn.Module] = []
    channels = 3
    for multiple in _VGG16:
        if not multiple:
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, multiple * width, 3, padding=1))
        channels = multiple * width
        if has_norms:
            layers.append(nn.BatchNorm2d(channels))
        layers.append(nn.ReLU(in_place))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def resnet50(width: int = 8) -> nn.Sequential:
    """Return ResNet-50 with fewer channels."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]  # fmt: skip
    channels = width
    for stage, count in enumerate((3, 4, 6, 3)):
        for number in range(count):
            layers.append(Bottleneck(channels, 4 * width * 2**stage, 2 if stage and not number else 1))
            channels = 4 * width * 2**stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def convnext(width: int = 16) -> nn.Sequential:
    """Return a stem, two stages of ConvNeXt's blocks and a classifier."""
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 4), *(ConvNextBlock(width) for _ in range(3)),
        nn.Conv2d(width, 2 * width, 2, 2), *(ConvNextBlock(2 * width) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
    )  # fmt: skip


# name -> the network, and the shape of its mini-batch.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "net": (Net, (16, 3, 32, 32)),
    "vgg16": (vgg16, (8, 3, 64, 64)),
    "vgg16 with norms": (lambda: vgg16(has_norms=True), (8, 3, 64, 64)),
    "vgg16 with norms, not in place": (lambda: vgg16(has_norms=True, in_place=False), (8, 3, 64, 64)),
    "resnet50": (resnet50, (8, 3, 64, 64)),
    "unet3d": (lambda: UNet3d(width=8), (2, 1, 16, 16, 16)),
    "convnext": (convnext, (8, 3, 64, 64)),
    "attention": (
        lambda: nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *(AttentionBlock(32) for _ in range(4))),
        (4, 3, 24, 24),
    ),
}


def make(name: str, *, channels_last: bool = False) -> tuple[nn.Module, Tensor]:
    """Return a network and its mini-batch on the GPU; a fixed seed makes both reproducible."""
    torch.manual_seed(1)
    build, shape = NETWORKS[name]
    model, x = build().cuda(), torch.randn(shape, device="cuda")
    if not channels_last:
        return model, x
    memory_format = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    return model.to(memory_format=memory_format), x.contiguous(memory_format=memory_format)

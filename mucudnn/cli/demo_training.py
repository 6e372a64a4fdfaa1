"""A training step of a small 3-D U-Net: stock PyTorch, compiled, converted, and converted and compiled."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import mucudnn.torch
from mucudnn.output.answers import Answer, Lines
from mucudnn.torch.benchmarking import Benchmark

LIMIT = "64MiB"  # the workspace that each convolution may use
SHAPE = (2, 1, 32, 32, 32)  # two volumes
_CLASSES = 3

_CONVERT = """\
The same in a program of your own:

    import mucudnn.torch

    print(mucudnn.torch.benchmark(model, x, workspace="{limit}"))
    mucudnn.torch.convert(model, workspace="{limit}")
    # Train as before. mucudnn.torch.restore(model) undoes it."""


@dataclass(frozen=True)
class Demo(Answer):
    """The benchmark of a training step in PyTorch as it is, compiled, converted, and both."""

    benchmark: Benchmark

    def lines(self) -> Lines:
        """Yield the times, and what they mean."""
        sizes = " × ".join(map(str, SHAPE[2:]))
        yield f"A training step of a small 3-D U-Net, {SHAPE[0]} volumes of {sizes}:"
        yield from ("", str(self.benchmark), "", _CONVERT.format(limit=LIMIT))


class _Level(nn.Module):
    """A level of a padded 3-D U-Net, modelled on Çiçek et al., 2016, around its coarser levels."""

    def __init__(self, channels: int, width: int, coarser: nn.Module) -> None:
        super().__init__()
        self.down, self.up = _double(channels, width), _double(2 * width, width)
        widen = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.coarser = nn.Sequential(nn.MaxPool3d(2), coarser, widen)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (N, channels, D, H, W) to features (N, width, D, H, W)."""
        fine = self.down(x)
        features: Tensor = self.up(torch.cat([fine, self.coarser(fine)], 1))
        return features


def _double(channels: int, out_channels: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(channels, out_channels, 3, padding=1), nn.ReLU(),
        nn.Conv3d(out_channels, out_channels, 3, padding=1), nn.ReLU(),
    )  # fmt: skip


def run_training() -> Demo:
    """Compare the training step in four ways."""
    generator = torch.Generator().manual_seed(1)
    volumes = torch.randn(*SHAPE, generator=generator)
    classes = torch.randint(_CLASSES, (SHAPE[0], *SHAPE[2:]), generator=generator)
    torch.manual_seed(1)
    network = nn.Sequential(_Level(1, 8, _Level(8, 16, _double(16, 32))), nn.Conv3d(8, _CLASSES, 1))
    benchmark = mucudnn.torch.benchmark(
        network, volumes, loss=lambda scores: nn.functional.cross_entropy(scores, classes),
        ways=("compiled", "converted", "both"), workspace=LIMIT, seconds=15,
    )  # fmt: skip
    return Demo(benchmark)

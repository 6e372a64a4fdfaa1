"""A model for the tests of `convert` and `plan`, and its input."""

from needs_torch import torch

nn = torch.nn


class Network(nn.Module):
    """A model with a convolution of each kind, and with the modules that usually surround convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding="same"),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False),
            nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"),
            nn.Dropout(0.5),
        )
        self.signal = nn.Conv1d(8, 4, 3, stride=2)
        self.volume = nn.Conv3d(1, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        return self.signal(x.flatten(2)).mean() + self.volume(x[:, None]).square().mean()


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))

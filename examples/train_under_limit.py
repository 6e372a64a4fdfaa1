"""Train a small network twice: in PyTorch, and with 16 MiB of workspace for each convolution.

The losses are the same, although algorithms and micro-batches differ. The first run takes some seconds to
measure the algorithms, and the cache keeps the measurements.
Run it with `python examples/train_under_limit.py`.
"""

from __future__ import annotations

from collections import Counter

import torch
from torch import nn

import mucudnn.torch

LIMIT = "16MiB"
STEPS = 5


def network() -> nn.Sequential:
    """Return three convolutions and a classifier of ten classes, with the same weights in every call."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def train(model: nn.Sequential, images: torch.Tensor, classes: torch.Tensor) -> list[float]:
    """Train a model for a few steps and return the loss of each step."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), classes)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train both networks, print the chosen micro-batches, and compare the losses."""
    torch.manual_seed(2)
    images, classes = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))
    model = network()
    plan = mucudnn.torch.plan(model, images, workspace=LIMIT)
    for kernel in plan.kernels:
        chosen = kernel.chosen
        parts = Counter(f"{part.micro_batch} {part.algorithm}" for part in chosen.parts)
        micro_batches = " + ".join(f"{times}×{part}" for part, times in parts.items())
        print(f"{kernel.pass_:16} {chosen.workspace / 2**20:6.2f} MiB  {micro_batches}")

    stock = train(network(), images, classes)
    divided = train(mucudnn.torch.convert(model, workspace=LIMIT, plan=plan), images, classes)
    print(f"\nstep  PyTorch  within {LIMIT}")
    for step, (expected, loss) in enumerate(zip(stock, divided, strict=True), 1):
        print(f"{step:4}  {expected:7.4f}  {loss:7.4f}")
    worst = max(abs(loss - expected) for expected, loss in zip(stock, divided, strict=True))
    print(f"largest difference: {worst:.1e}")
    if worst > 1e-3:
        raise SystemExit("the losses differ by more than rounding")


if __name__ == "__main__":
    main()

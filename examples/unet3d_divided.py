"""A training step of a 3-D U-Net on one volume that two processes share.

The network is the U-Net of `unet3d.py` with a norm after each convolution. Run it with
`torchrun --nproc-per-node 2 examples/unet3d_divided.py`.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn


def normalized(model: nn.Module) -> nn.Module:
    """Insert a group norm before each ReLU of a network."""
    for part in list(model.modules()):
        for name, child in list(part.named_children()):
            if isinstance(child, nn.ReLU):
                channels = part[int(name) - 1].out_channels
                setattr(part, name, nn.Sequential(nn.GroupNorm(2, channels), nn.ReLU()))
    return model


def run(mesh: Any, shape: tuple[int, ...] = (1, 1, 16, 16, 16)) -> tuple[float, int, int]:
    """Return the largest error of result and gradients, and the saved bytes undivided and of this rank."""
    from examples.spatial_common import SavedBytes, difference, mean_of_gradients
    from examples.unet3d import UNet3d
    from mucudnn.torch import spatial

    torch.manual_seed(1)
    model = normalized(UNet3d(width=4)).double()
    undivided, x = copy.deepcopy(model), torch.randn(shape, dtype=torch.float64)
    labels = torch.randint(3, (shape[0], *shape[2:]))
    with SavedBytes(undivided) as whole_bytes:
        expected = undivided(x)
    nn.functional.cross_entropy(expected, labels).backward()
    divided = spatial.divide(x, mesh, {2: "part"})
    with SavedBytes(model) as part_bytes:
        y = model(divided)
    nn.functional.cross_entropy(y, labels).backward()
    mean_of_gradients(model)
    errors = [difference(y.gather(), expected)]
    pairs = zip(model.parameters(), undivided.parameters(), strict=True)
    errors += [difference(p.grad, q.grad) for p, q in pairs if q.grad.abs().max() > 1e-12]
    return max(errors), whole_bytes.total, part_bytes.total


def main() -> None:
    """Run the network divided and undivided, and compare."""
    from examples.spatial_common import report, start

    report("largest error of the result and the gradients", *run(start()), limit=1e-10)


if __name__ == "__main__":
    import sys

    sys.path.append(str(Path(__file__).parents[1]))
    main()

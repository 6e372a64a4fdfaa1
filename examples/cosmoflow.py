"""CosmoFlow on volumes that two processes share and read in parts from an HDF5 file.

Each process reads its half of each volume, runs the unchanged network on it, and trains. The losses equal
those of the undivided network. Run it with `torchrun --nproc-per-node 2 examples/cosmoflow.py`.
"""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

SIZE, SAMPLES, STEPS = 16, 8, 20


class CosmoFlow(nn.Module):
    """A network modelled on Mathuriya et al., 2018: convolutions down to 2³ voxels, then dense layers."""

    def __init__(self, size: int = 128, width: int = 16, outputs: int = 4, channels: int = 1) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        while size > 2:
            layers += [nn.Conv3d(channels, width, 3, padding=1), nn.BatchNorm3d(width), nn.LeakyReLU(0.01)]
            layers.append(nn.MaxPool3d(2))
            channels, width, size = width, min(2 * width, 256), size // 2
        self.features = nn.Sequential(*layers)
        self.dense = nn.Sequential(nn.Linear(8 * channels, 64), nn.LeakyReLU(0.01), nn.Linear(64, outputs))

    def forward(self, x: Any) -> Any:
        """Map volumes (N, channels, size, size, size) to the parameters of the universe (N, outputs)."""
        return self.dense(self.features(x).flatten(1))


def write_volumes(path: Path) -> None:
    """Write volumes whose spectrum depends on their targets, as that of densities of matter does."""
    import h5py

    generator = torch.Generator().manual_seed(1)
    targets = torch.rand(SAMPLES, 4, generator=generator)
    noise = torch.randn(SAMPLES, 1, SIZE, SIZE, SIZE, generator=generator)
    smooth = nn.functional.avg_pool3d(noise, 3, 1, 1)
    volumes = (targets[:, :1, None, None, None] * noise + targets[:, 1:2, None, None, None] * smooth).exp()
    with h5py.File(path, "w") as file:
        file.create_dataset("volumes", data=volumes.numpy(), chunks=(1, 1, SIZE // 4, SIZE, SIZE))
        file["targets"] = targets.numpy()


def train(model: nn.Module, batches: Any, together: bool) -> list[float]:
    """Train on (input, target) pairs and return the losses."""
    from examples.spatial_common import mean_of_gradients

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    for x, target in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), target)
        loss.backward()
        if together:
            mean_of_gradients(model)
        optimizer.step()
        losses.append(loss.item())
    return losses


def run(mesh: Any) -> tuple[float, int, int]:
    """Return the largest difference of the losses, and the saved bytes undivided and of this rank."""
    from examples.spatial_common import SavedBytes
    from mucudnn.torch import spatial

    place: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(place)
    path = Path(place[0]) / "volumes.h5"
    if dist.get_rank() == 0:
        write_volumes(path)
    dist.barrier()
    torch.manual_seed(1)
    model = CosmoFlow(SIZE, width=4).double()
    undivided = copy.deepcopy(model)
    data = spatial.HyperslabDataset(path, "volumes", mesh, {2: "part"}, targets="targets")
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=data.sampler(shuffle=False))
    import h5py

    with h5py.File(path) as file:
        x, y = torch.from_numpy(file["volumes"][:]).double(), torch.from_numpy(file["targets"][:]).double()
    parts = [(part.double(), target.double()) for part, target in loader]
    wholes = list(zip(x.split(2), y.split(2), strict=True))
    mine = ((data.divided(part), target) for part, target in (parts * STEPS)[:STEPS])
    losses = train(model, mine, together=True)
    expected = train(undivided, (wholes * STEPS)[:STEPS], together=False)
    with SavedBytes(undivided) as whole_bytes:
        undivided(wholes[0][0])
    with SavedBytes(model) as part_bytes:
        model(data.divided(parts[0][0]))
    worst = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
    return worst, whole_bytes.total, part_bytes.total


def main() -> None:
    """Train the network divided and undivided, and compare."""
    from examples.spatial_common import report, start

    report("largest difference of 20 losses", *run(start()), limit=1e-9)


if __name__ == "__main__":
    import sys

    sys.path.append(str(Path(__file__).parents[1]))
    main()

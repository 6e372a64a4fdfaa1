"""A model in two stages on two processes, trained as a pipeline, with a trace of each process.

Run it with `torchrun --nproc-per-node 2 examples/pipeline.py gems`. Other schedules are 1f1b, gpipe, layers
and bidirectional. Then `mucudnn parallel causes rank0.json rank1.json` shows why the processes idle.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.profiler import ProfilerActivity, profile

from mucudnn.torch.pipeline import BidirectionalPipeline

STEPS, SAMPLES = 4, 16


def make_stages() -> list[nn.Module]:
    """Return a small classifier of images, cut in the middle."""
    torch.manual_seed(0)
    first = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()
    )
    second = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return [first, second.append(nn.Linear(32, 10))]


def train_undivided(x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Return the losses of the same training without stages."""
    model = nn.Sequential(*make_stages())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def main(schedule: str, folder: Path) -> None:
    """Train, compare the losses with those of the undivided model, and write the traces."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("pipe",))
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(SAMPLES, 3, 32, 32, generator=generator), torch.arange(SAMPLES) % 10
    pipeline = BidirectionalPipeline(
        make_stages(), mesh, nn.functional.cross_entropy, schedule, replications=2
    )
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    losses = []
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            optimizer.zero_grad()
            losses.append(float(pipeline.step(x, y)))
            optimizer.step()
    profiler.export_chrome_trace(str(folder / f"rank{dist.get_rank()}.json"))
    if dist.get_rank() == 0:
        expected = train_undivided(x, y)
        difference = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
        print(f"{schedule}: losses {', '.join(f'{loss:.4f}' for loss in losses)}")
        print(f"largest difference from the undivided model: {difference:.1e}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "gems", Path(sys.argv[2] if len(sys.argv) > 2 else "."))

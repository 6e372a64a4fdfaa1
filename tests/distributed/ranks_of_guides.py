"""The guides whose Python runs on several ranks, as torchrun starts them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from pages import run_python
from torch import nn


def run_page(page: str, folder: Path) -> None:
    """Run the Python of a page on this rank, in a folder of all ranks."""
    torch.manual_seed(0)
    os.chdir(folder)
    store = leave_the_world()
    # A reader measures for minutes, because the volume is large.
    with patch("mucudnn.torch.parallel.spatial.planning.plan.Measured", lambda *_: lambda kernel: 1.0):
        run_python(page, names_for_pipelines() if page == "pipelines.md" else names_for_spatial())
    del store


def leave_the_world() -> dist.TCPStore | None:
    """End this world, and set the variables from which the page makes it again. Return rank 0's store."""
    rank, world = dist.get_rank(), dist.get_world_size()
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
    port = [server.port if server else 0]
    dist.broadcast_object_list(port)
    dist.destroy_process_group()
    os.environ.update(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_PORT": str(port[0]),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # rank 0 connects to the store, too
        }
    )
    return server


def names_for_pipelines() -> dict[str, Any]:
    """Return the stages, the mini-batches and the scheduler that the reader of the page has."""
    end = nn.Sequential(nn.Flatten(), nn.LazyLinear(5))
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), end]
    inputs, targets = torch.randn(8, 3, 8, 8), torch.arange(8) % 5
    nn.Sequential(*layers)(inputs)  # gives the lazy layer its weights
    optimizer = torch.optim.SGD(layers[0].parameters(), lr=0.1)
    return {
        "stages": layers,
        "resnet18": nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4))),
        "inputs": inputs,
        "targets": targets,
        "loss": nn.functional.cross_entropy,
        "accumulated": [(inputs, targets)] * 2,
        "n": 2,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "folder": "checkpoint",
    }


def names_for_spatial() -> dict[str, Any]:
    """Return the model and the volume that the reader of the page has."""
    model = nn.Sequential(nn.Conv3d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv3d(2, 1, 3, padding=1))
    return {"model": model, "volume": torch.randn(1, 1, 8, 8, 8)}

"""Worlds of processes on this machine, each with a process group of gloo."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any


def launch(world: int, function: Callable[..., Any], *args: Any, timeout: float = 900) -> list[Any]:
    """Return the values of a function on each rank of a new world. Raise the first error of a rank."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["mucudnn.torch.spatial", "torch.distributed.tensor"])
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / str(rank) for rank in range(world)]
        ranks = [
            context.Process(target=_rank, args=(rank, world, folder, function, args)) for rank in range(world)
        ]
        for process in ranks:
            process.start()
        end = time.monotonic() + timeout
        for process in ranks:
            process.join(max(end - time.monotonic(), 0.1))
            if process.is_alive():
                process.kill()
        values = [pickle.loads(f.read_bytes()) if f.exists() else RuntimeError("no answer") for f in files]
    for value in values:
        if isinstance(value, RuntimeError):
            raise value
    return values


def _rank(rank: int, world: int, folder: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    store, wait = f"file://{folder}/store", timedelta(seconds=30)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=wait)
    try:
        value = function(*args)
    except Exception as error:
        value = RuntimeError(f"{type(error).__name__}: {error}")
    part = Path(folder) / f"{rank}.part"
    part.write_bytes(pickle.dumps(value))
    part.rename(part.with_suffix(""))
    os._exit(0)

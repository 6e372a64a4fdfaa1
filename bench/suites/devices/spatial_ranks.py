"""Worlds of processes on this machine, and what each rank measures: saved bytes and processor time."""

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

PARTS = ("convolutions", "exchange", "other operators", "Python and autograd", "gloo's threads")


def launch(world: int, function: Callable[..., Any], *args: Any, timeout: float = 900) -> list[Any]:
    """Run a function on each rank of a new world of processes, and return the values or the error's text."""
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
        return [pickle.loads(f.read_bytes()) if f.exists() else RuntimeError("no answer") for f in files]


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
    (Path(folder) / f"{rank}.part").write_bytes(pickle.dumps(value))
    (Path(folder) / f"{rank}.part").rename(Path(folder) / str(rank))
    os._exit(0)


def values(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Return the values of all ranks. Raises the error of a rank that failed."""
    found = launch(world, function, *args)
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


def memory() -> tuple[int, int]:
    """Return the saved bytes of a 3-D U-Net, undivided and of this rank."""
    import torch
    import torch.distributed as dist

    from examples.spatial_common import SavedBytes
    from examples.unet3d import UNet3d
    from examples.unet3d_divided import normalized
    from mucudnn.torch import spatial

    world = dist.get_world_size()
    mesh = spatial.init_mesh("cpu", timeout=60, depth=world)
    torch.manual_seed(1)
    model, x = normalized(UNet3d(width=8)), torch.randn(1, 1, 64, 32, 32)
    with SavedBytes(model) as whole:
        model(x)
    with SavedBytes(model) as part:
        model(spatial.divide(x, mesh, {2: "depth"}))
    return whole.total, part.total


def work(engine: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Return the seconds of processor time that this rank takes for a training step of a 3-D U-Net.

    They are measured after two steps that do not count, as the least of three. A world of one rank runs the
    undivided network on a plain tensor. PARTS divide the time of a further step, in which each operator is
    timed.
    """
    import torch
    import torch.distributed as dist

    import mucudnn.torch
    from examples.unet3d import UNet3d
    from mucudnn.torch import spatial

    torch.manual_seed(1)
    world = dist.get_world_size()
    mesh = spatial.init_mesh("cpu", timeout=300, depth=world)
    model, x = UNet3d(width=8), torch.randn(1, 1, *shape)
    if engine == "mucudnn":
        mucudnn.torch.convert(model, workspace="16MiB")
    given = x if world == 1 else spatial.divide(x, mesh, {2: "depth"})

    def step() -> tuple[float, float]:
        dist.barrier()
        all_threads, own = time.process_time(), time.thread_time()
        model(given).square().mean().backward()
        return time.process_time() - all_threads, time.thread_time() - own

    for _ in range(2):
        step()
    steps = [step() for _ in range(3)]
    found = {"all": min(one for one, _ in steps), "own thread": min(own for _, own in steps)}
    operators = operator_times()
    with operators:
        everything, own = step()
    found |= operators.seconds
    found["Python and autograd"] = own - sum(operators.seconds.values())
    found["gloo's threads"] = everything - own
    return found


def operator_times() -> Any:
    """Return a mode that adds up the processor time of operators: of this thread, and without Python's."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Times(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seconds = dict.fromkeys(PARTS[:3], 0.0)

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = function._schema.name
            exchanges = name.startswith(("mucudnn::window", "mucudnn::spatial_sum"))
            part = PARTS[0] if "convolution" in name else PARTS[1] if exchanges else PARTS[2]
            before = time.thread_time()
            try:
                return function(*args, **(kwargs or {}))
            finally:
                self.seconds[part] += time.thread_time() - before

    return Times()

"""`python -m bench.spatial`: measure tensors that ranks share, into `spatial.jsonl`.

It compares a list of layers with DTensor, and with PhysicsNeMo's ShardTensor if it can be imported: right,
wrong or refused. It counts saved bytes and the ranks' processor time, and simulates more ranks by the α-β
model. `--shard-tensor FOLDER` names a folder with PhysicsNeMo's packages.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import pickle
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.record import RESULTS, Record, describe_machine, read, show, write

SYSTEMS = ("mucudnn", "DTensor", "ShardTensor")
LINK = (10e-6, 10e9)  # seconds a message and bytes a second: assumed, not measured
MULTIPLICATIONS, RATE = 5e12, 1e12  # multiplications and bytes of memory a second: assumed, not measured
PAPER = {128: 0.82, 256: 6.59, 512: 52.7}  # GiB a sample, Oyama et al., 2020


def layers() -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return layers with the shapes of their inputs; axis 2 is divided."""
    import torch
    from torch import nn

    def resize(**given: Any) -> Any:
        return lambda x: torch.nn.functional.interpolate(x, **given)

    image, volume = (1, 4, 16, 12), (1, 4, 16, 8, 8)
    found: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for kernel, stride, padding, dilation in (
        (1, 1, 0, 1), (3, 1, 1, 1), (3, 1, 0, 1), (5, 1, 2, 1), (3, 2, 1, 1), (3, 2, 0, 1), (2, 2, 0, 1),
        (4, 2, 1, 1), (7, 2, 3, 1), (3, 1, 2, 2), (3, 3, 1, 1), (2, 1, 1, 1),
    ):  # fmt: skip
        text = f"k{kernel} s{stride} p{padding} d{dilation}"
        given = {"stride": stride, "padding": padding, "dilation": dilation}
        found[f"convolution {text}"] = nn.Conv2d(4, 4, kernel, **given), image
        if kernel in (3, 5) or stride == 2:
            found[f"convolution in 3-D {text}"] = nn.Conv3d(4, 4, kernel, **given), volume
    found |= {
        "transposed k2 s2": (nn.ConvTranspose2d(4, 4, 2, stride=2), image),
        "transposed k4 s2 p1": (nn.ConvTranspose2d(4, 4, 4, stride=2, padding=1), image),
        "transposed k3 s2 p1 o1": (nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1), image),
        "max pooling 2": (nn.MaxPool2d(2), image),
        "max pooling k3 s2 p1": (nn.MaxPool2d(3, 2, 1), image),
        "max pooling k3 s1 p1": (nn.MaxPool2d(3, 1, 1), image),
        "max pooling dilated": (nn.MaxPool2d(2, 2, dilation=2), image),
        "max pooling, ceil": (nn.MaxPool2d(3, 2, ceil_mode=True), image),
        "average pooling 2": (nn.AvgPool2d(2), image),
        "average pooling k3 s2 p1": (nn.AvgPool2d(3, 2, 1), image),
        "average pooling k3 s1 p1": (nn.AvgPool2d(3, 1, 1), image),
        "adaptive average 1": (nn.AdaptiveAvgPool2d(1), image),
        "adaptive average 5": (nn.AdaptiveAvgPool2d(5), image),
        "nearest 2": (resize(scale_factor=2), image),
        "nearest 1.5": (resize(scale_factor=1.5), image),
        "bilinear 2": (resize(scale_factor=2, mode="bilinear"), image),
        "bilinear 1.7": (resize(scale_factor=1.7, mode="bilinear"), image),
        "batch norm": (nn.BatchNorm2d(4), image),
        "group norm": (nn.GroupNorm(2, 4), image),
        "instance norm": (nn.InstanceNorm2d(4), image),
        "circular padding": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), image),
        "reflected padding": (nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), image),
    }
    return found


def verdicts(system: str) -> dict[str, tuple[str, str]]:
    """Return for each layer "right", "wrong" or "refused" with a reason, on this world."""
    import torch
    import torch.distributed as dist

    if system == "ShardTensor":
        _prepare_shard_tensor()
    found = {}
    for name, (layer, shape) in layers().items():
        torch.manual_seed(1)
        if isinstance(layer, torch.nn.Module):
            for parameter in layer.parameters():
                torch.nn.init.normal_(parameter)
            layer = layer.double()
        x = torch.randn(shape, dtype=torch.float64)
        expected = layer(x)
        try:
            y = _run(system, layer, x)
            same = y.shape == expected.shape and bool((y - expected).abs().max() < 1e-10)
            text = "" if same else f"{tuple(y.shape)}" if y.shape != expected.shape else "other values"
            mine = ("right" if same else "wrong", text)
        except Exception as error:
            mine = ("refused", f"{type(error).__name__}: {str(error).splitlines()[0][:120]}")
        each: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(each, mine)
        found[name] = next((one for one in each if one[0] == "wrong"), max(each))
    return found


def _prepare_shard_tensor() -> None:
    """Register ShardTensor's layers, and its process group: without a GPU it does neither itself."""
    import torch
    import torch.distributed as dist

    import_module("physicsnemo.domain_parallel").register_custom_ops()  # it does so itself only on a GPU
    kind = import_module("physicsnemo.distributed").DistributedManager
    kind._shared_state["_is_initialized"] = True
    manager = kind()
    manager._rank = manager._local_rank = dist.get_rank()
    manager._world_size, manager._distributed = dist.get_world_size(), True
    manager._device = torch.device("cpu")


def _run(system: str, layer: Any, x: Any) -> Any:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

    if system == "mucudnn":
        from mucudnn.torch import spatial

        mesh = spatial.init_mesh("cpu", timeout=20, depth=dist.get_world_size())
        y = layer(spatial.divide(x, mesh, {2: "depth"}))
        return y.gather()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if isinstance(layer, torch.nn.Module):
        layer = distribute_module(layer, mesh)
    if system == "DTensor":
        return layer(distribute_tensor(x, mesh, [Shard(2)])).full_tensor()
    scatter_tensor = import_module("physicsnemo.domain_parallel").scatter_tensor
    given = scatter_tensor(x, 0, mesh, (Shard(2),), global_shape=x.shape, dtype=x.dtype)
    return layer(given).full_tensor()


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


PARTS = ("convolutions", "exchange", "other operators", "Python and autograd", "gloo's threads")


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


def cosmoflow_bytes(size: int) -> dict[str, int]:
    """Return the bytes of one sample of CosmoFlow without norms, on the meta device, by two definitions.

    "saved" are the tensors that autograd saves, for a volume with one channel. "values and gradients" are the
    volume, here with four channels as in the paper's data set, and the result of each convolution, activation
    and pooling, each twice: as a value, and as a gradient. This is how a framework counts that keeps both for
    every layer, such as the paper's. The paper's own definition was not at hand.
    """
    import torch
    from torch import nn

    from examples.cosmoflow import CosmoFlow

    def without_norms(channels: int) -> nn.Module:
        model = CosmoFlow(size, channels=channels).to("meta")
        kept = [part for part in model.features if not isinstance(part, nn.BatchNorm3d)]
        model.features = nn.Sequential(*kept)
        return model

    seen: dict[int, Any] = {}

    def pack(tensor: Any) -> Any:
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            seen[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        without_norms(1)(torch.empty(1, 1, size, size, size, device="meta"))
    model, x = without_norms(4), torch.empty(1, 4, size, size, size, device="meta")
    values = [x]
    for part in model.features:
        part.register_forward_hook(lambda module, args, y: values.append(y))
    model(x)
    return {
        "saved": sum(storage.nbytes() for storage in seen.values()),
        "values and gradients": 2 * sum(one.numel() * one.element_size() for one in values),
    }


def simulated(world: int, weak: bool) -> tuple[float, str]:
    """Return the milliseconds of a CosmoFlow step on assumed devices by the planner's model; and the mesh."""
    import torch

    from examples.cosmoflow import CosmoFlow
    from mucudnn.torch import spatial

    def time_ms(kernel: Any) -> float:
        problem = kernel.problem
        work = problem.mini_batch * problem.out_channels * problem.in_channels
        return float(1e3 * work * math.prod(problem.output) * math.prod(problem.kernel) / MULTIPLICATIONS)

    with torch.device("meta"):
        model = CosmoFlow(128)
    model.dense = torch.nn.Identity()
    shape = (1, 1, 128 * (world if weak else 1), 128, 128)
    link = spatial.Link(*LINK)
    plan = spatial.plan(model, shape, world=world, link=link, time_ms=time_ms, rate=RATE)
    return plan.time_ms, " × ".join(f"{name}={size}" for name, size in plan.mesh.items())


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


def compare(worlds: tuple[int, ...]) -> list[Record]:
    """Return the verdicts on each system."""
    records = []
    for world in worlds:
        for system in SYSTEMS:
            found = launch(world, verdicts, system)[0]
            if isinstance(found, Exception):
                records.append(
                    Record("spatial", f"{system}, {world} ranks", "layers", None, "", {"reason": str(found)})
                )
                continue
            for verdict in ("right", "wrong", "refused"):
                named = {name: why for name, (kind, why) in found.items() if kind == verdict}
                details = {"of": len(found), "names": named} if verdict != "right" else {"of": len(found)}
                case = f"{system}, {world} ranks"
                records.append(Record("spatial", case, f"layers {verdict}", len(named), "", details))
    return records


def values(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Return the values of all ranks. Raises the error of a rank that failed."""
    found = launch(world, function, *args)
    for one in found:
        if isinstance(one, Exception):
            raise one
    return found


def measure_bytes() -> list[Record]:
    """Return the bytes that ranks save, the bytes of CosmoFlow, and simulated scaling."""
    records = []
    for world in (2, 4):
        found = values(world, memory)
        whole, worst = found[0][0], max(one[1] for one in found)
        details: dict[str, Any] = {"undivided": whole, "largest": worst}
        name = "saved bytes of the largest part × ranks / undivided"
        records.append(
            Record("spatial", f"3-D U-Net, {world} ranks", name, worst * world / whole, "", details)
        )
    for size, paper in PAPER.items():
        for definition, value in cosmoflow_bytes(size).items():
            details = {"paper_gib": paper, "counted": definition, "network": "our CosmoFlow, without norms"}
            metric = f"bytes of a sample: {definition}"
            records.append(Record("spatial", f"CosmoFlow {size}³", metric, value / 2**30, "GiB", details))
    for weak in (False, True):
        alone, _ = simulated(1, weak)
        for world in (2, 4, 8, 16):
            took, mesh = simulated(world, weak)
            details = {
                "latency_s": LINK[0], "bandwidth_bytes_s": LINK[1], "multiplications_s": MULTIPLICATIONS,
                "memory_bytes_s": RATE, "simulated": True, "mesh": mesh, "one_rank_ms": alone, "ms": took,
            }  # fmt: skip
            case = f"CosmoFlow 128³, {'weak' if weak else 'strong'} scaling, {world} ranks"
            ratio = alone / took * (world if weak else 1)
            records.append(Record("spatial", case, "throughput / one rank, simulated", ratio, "", details))
    return records


def measure_work() -> list[Record]:
    """Return the processor time of training steps, added over the ranks, relative to one rank.

    In strong scaling all ranks share one volume. In weak scaling the volume grows with the ranks, and the
    time of one rank is multiplied by their number.
    """
    records = []
    for kind, side, engine in (
        ("strong", 64, "mucudnn"), ("strong", 64, "PyTorch"), ("strong", 96, "mucudnn"),
        ("weak", 32, "mucudnn"),
    ):  # fmt: skip
        alone = 0.0
        for world in (1, 4) if engine == "PyTorch" else (1, 2, 4):
            shape = (side * (world if kind == "weak" else 1), side, side)
            ranks = values(world, work, engine, shape)
            added = {name: sum(rank[name] for rank in ranks) for name in ranks[0]}
            alone = alone or added["all"]
            share = world if kind == "weak" else 1
            volume = " × ".join(map(str, shape))
            case = f"3-D U-Net of {volume}, {world} ranks, {engine}, {kind} scaling"
            ratio = added["all"] / (alone * share)
            details = {"seconds": added, "of_one_rank": alone * share}
            records.append(Record("spatial", case, "processor time / undivided", ratio, "", details))
    return records


def main() -> None:
    """Measure everything, print the records and write them."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.spatial", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--shard-tensor", metavar="FOLDER", help="a folder with PhysicsNeMo's packages")
    parser.add_argument("--worlds", default="2", help="numbers of ranks for the comparison (default: 2)")
    parser.add_argument("--only", choices=["compare", "bytes", "work"])
    arguments = parser.parse_args()
    if arguments.shard_tensor:
        sys.path.append(arguments.shard_tensor)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [os.environ.get("PYTHONPATH"), arguments.shard_tensor])
        )
    worlds = tuple(map(int, arguments.worlds.split(",")))
    parts = {"compare": lambda: compare(worlds), "bytes": measure_bytes, "work": measure_work}
    path = RESULTS / "spatial.jsonl"
    kept = [
        record for _, record in read(path) if arguments.only and record.details.get("part") != arguments.only
    ]
    records = [
        replace(record, details={"part": name, **record.details})
        for name, part in parts.items()
        if arguments.only in (None, name)
        for record in part()
    ]
    show(Console(width=110), records)
    write(path, describe_machine(device="cpu", library="gloo"), [*kept, *records])


if __name__ == "__main__":
    main()

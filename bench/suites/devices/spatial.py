"""Tensors that ranks share.

The program compares a list of layers with DTensor, and with PhysicsNeMo's ShardTensor if it can be imported:
right, wrong or refused. It counts saved bytes and the ranks' processor time, and simulates more ranks by the
α-β model. `--shard-tensor FOLDER` names a folder with PhysicsNeMo's packages.
`--only decoders` needs diffusers.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.lib.ranks import launch, values
from bench.lib.record import Record
from bench.suites.devices.spatial_decoders import measure_decoders
from bench.suites.devices.spatial_systems import SYSTEMS, compare_layers

LINK = (10e-6, 10e9)  # seconds a message and bytes a second: assumed, not measured
MULTIPLICATIONS, RATE = 5e12, 1e12  # multiplications and bytes of memory a second: assumed, not measured
PARTS = ("compare", "bytes", "work", "decoders")
OPERATORS = ("convolutions", "exchange", "other operators")
PAPER = {128: 0.82, 256: 6.59, 512: 52.7}  # GiB a sample, Oyama et al., 2020


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the parts, and what the comparison needs."""
    parser.add_argument("--shard-tensor", metavar="FOLDER", help="a folder with PhysicsNeMo's packages")
    parser.add_argument(
        "--worlds", nargs="+", type=int, default=[2], help="ranks of the comparison (default: 2)"
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure the parts that are asked for."""
    if options.shard_tensor:
        sys.path.append(options.shard_tensor)
        paths = filter(None, [os.environ.get("PYTHONPATH"), options.shard_tensor])
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if "compare" in options.only:
        for world in options.worlds:
            for system in SYSTEMS:
                yield from compare(world, system)
    if "bytes" in options.only:
        yield from measure_bytes()
    if "work" in options.only:
        yield from measure_work()
    if "decoders" in options.only:
        yield from measure_decoders()


def compare(world: int, system: str) -> Iterator[Record]:
    """Yield the numbers of layers that a system computes right, wrong or not at all."""
    case, outcomes = f"{system}, {world} ranks", launch(world, compare_layers, system)[0]
    if isinstance(outcomes, Exception):
        yield Record("spatial", case, "layers", None, "", {"reason": str(outcomes)})
        return
    for outcome in ("right", "wrong", "refused"):
        reasons = {name: why for name, (kind, why) in outcomes.items() if kind == outcome}
        details: dict[str, Any] = {"of": len(outcomes), "version": version_of(system)}
        if outcome != "right":
            details["names"] = reasons
        yield Record("spatial", case, f"layers {outcome}", len(reasons), "", details)


def version_of(system: str) -> str:
    """Return the version of a system's package, or "" if it is not known."""
    packages = {"mucudnn": "mucudnn", "DTensor": "torch", "ShardTensor": "nvidia-physicsnemo"}
    try:
        return version(packages[system])
    except PackageNotFoundError:
        return ""


def measure_bytes() -> Iterator[Record]:
    """Yield the bytes that ranks save, the bytes of CosmoFlow, and simulated scaling."""
    for world in (2, 4):
        ranks = values(world, saved_bytes)
        whole, largest = ranks[0][0], max(part for _, part in ranks)
        details: dict[str, Any] = {"undivided": whole, "largest": largest}
        metric = "saved bytes of the largest part × ranks / undivided"
        yield Record("spatial", f"3-D U-Net, {world} ranks", metric, largest * world / whole, "", details)
    for size, paper in PAPER.items():
        for definition, value in cosmoflow_bytes(size).items():
            details = {"paper_gib": paper, "counted": definition, "network": "our CosmoFlow, without norms"}
            metric = f"bytes of a sample: {definition}"
            yield Record("spatial", f"CosmoFlow {size}³", metric, value / 2**30, "GiB", details)
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
            yield Record("spatial", case, "throughput / one rank, simulated", ratio, "", details)


def measure_work() -> Iterator[Record]:
    """Yield the processor time of training steps, added over the ranks, relative to one rank.

    In strong scaling all ranks share one volume. In weak scaling the volume grows with the ranks, and the
    time of one rank is multiplied by their number.
    """
    for kind, side, engine in (
        ("strong", 64, "mucudnn"), ("strong", 64, "PyTorch"), ("strong", 96, "mucudnn"),
        ("weak", 32, "mucudnn"),
    ):  # fmt: skip
        alone = 0.0
        for world in (1, 4) if engine == "PyTorch" else (1, 2, 4):
            share = world if kind == "weak" else 1
            shape = (side * share, side, side)
            ranks = values(world, processor_seconds, engine, shape)
            added = {name: sum(rank[name] for rank in ranks) for name in ranks[0]}
            alone = alone or added["all"]
            volume = " × ".join(map(str, shape))
            case = f"3-D U-Net of {volume}, {world} ranks, {engine}, {kind} scaling"
            details = {"seconds": added, "of_one_rank": alone * share}
            ratio = added["all"] / (alone * share)
            yield Record("spatial", case, "processor time / undivided", ratio, "", details)


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

    def note_storage(tensor: Any) -> Any:
        if not isinstance(tensor, nn.Parameter):
            storage = tensor.untyped_storage()
            seen[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note_storage, lambda tensor: tensor):
        without_norms(1)(torch.empty(1, 1, size, size, size, device="meta"))
    model, x = without_norms(4), torch.empty(1, 4, size, size, size, device="meta")
    results = [x]
    for part in model.features:
        part.register_forward_hook(lambda module, args, y: results.append(y))
    model(x)
    return {
        "saved": sum(storage.nbytes() for storage in seen.values()),
        "values and gradients": 2 * sum(value.numel() * value.element_size() for value in results),
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


def saved_bytes() -> tuple[int, int]:
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


def processor_seconds(engine: str, shape: tuple[int, ...]) -> dict[str, float]:
    """Return the seconds of processor time that this rank takes for a training step of a 3-D U-Net.

    They are measured after two steps that do not count, as the least of three. A world of one rank runs the
    undivided network on a plain tensor. A further step, in which each operator is timed, divides the
    time.
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
    operand = x if world == 1 else spatial.divide(x, mesh, {2: "depth"})

    def step() -> tuple[float, float]:
        dist.barrier()
        all_threads, own = time.process_time(), time.thread_time()
        model(operand).square().mean().backward()
        return time.process_time() - all_threads, time.thread_time() - own

    for _ in range(2):
        step()
    steps = [step() for _ in range(3)]
    seconds = {"all": min(total for total, _ in steps), "own thread": min(own for _, own in steps)}
    operators = operator_times()
    with operators:
        everything, own = step()
    seconds |= operators.seconds
    seconds["Python and autograd"] = own - sum(operators.seconds.values())
    seconds["gloo's threads"] = everything - own
    return seconds


def operator_times() -> Any:
    """Return a mode that adds up the processor time of operators: of this thread, and without Python's."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Times(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seconds = dict.fromkeys(OPERATORS, 0.0)

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = function._schema.name
            exchanges = name.startswith(("mucudnn::window", "mucudnn::spatial_sum"))
            part = OPERATORS[0 if "convolution" in name else 1 if exchanges else 2]
            before = time.thread_time()
            try:
                return function(*args, **(kwargs or {}))
            finally:
                self.seconds[part] += time.thread_time() - before

    return Times()

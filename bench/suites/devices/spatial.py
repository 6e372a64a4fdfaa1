"""Tensors that ranks share.

The program compares a list of layers with DTensor, and with PhysicsNeMo's ShardTensor if it can be imported:
right, wrong or refused. It counts saved bytes and the ranks' processor time, and simulates more ranks by the
α-β model. `--shard-tensor FOLDER` names a folder with PhysicsNeMo's packages.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from bench.lib.record import Machine, Record, describe_machine
from bench.suites.devices.spatial_ranks import launch, memory, values, work
from bench.suites.devices.spatial_systems import SYSTEMS, verdicts

LINK = (10e-6, 10e9)  # seconds a message and bytes a second: assumed, not measured
MULTIPLICATIONS, RATE = 5e12, 1e12  # multiplications and bytes of memory a second: assumed, not measured
PARTS = ("compare", "bytes", "work")
PAPER = {128: 0.82, 256: 6.59, 512: 52.7}  # GiB a sample, Oyama et al., 2020


def describe() -> Machine:
    """Return the description of this machine."""
    return describe_machine(device="cpu", library="gloo")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the parts, and what the comparison needs."""
    parser.add_argument("--shard-tensor", metavar="FOLDER", help="a folder with PhysicsNeMo's packages")
    parser.add_argument("--worlds", default="2", help="numbers of ranks for the comparison (default: 2)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="these parts alone")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure the parts that are asked for."""
    if options.shard_tensor:
        sys.path.append(options.shard_tensor)
        paths = filter(None, [os.environ.get("PYTHONPATH"), options.shard_tensor])
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    if "compare" in options.only:
        yield from compare(tuple(map(int, options.worlds.split(","))))
    if "bytes" in options.only:
        yield from measure_bytes()
    if "work" in options.only:
        yield from measure_work()


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
                details: dict[str, Any] = {"of": len(found), "version": version_of(system)}
                if verdict != "right":
                    details["names"] = named
                case = f"{system}, {world} ranks"
                records.append(Record("spatial", case, f"layers {verdict}", len(named), "", details))
    return records


def version_of(system: str) -> str:
    """Return the version of a system's package, or "" if it is not known."""
    packages = {"mucudnn": "mucudnn", "DTensor": "torch", "ShardTensor": "nvidia-physicsnemo"}
    try:
        return version(packages[system])
    except PackageNotFoundError:
        return ""


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

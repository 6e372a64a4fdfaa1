"""Placement: the solver against all placements, on whole networks, and the projection's equations.

Inception-V3 comes from torchvision, where it is installed. The costs of networks are modelled.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Iterator

from bench.lib.record import Record
from mucudnn.measuring.modelled_device import EFFICIENCY, find_device
from mucudnn.plans.devices.placing import place_network
from mucudnn.plans.memory.costs import model_costs
from mucudnn.problems.bundled import bundled_network
from mucudnn.solver.devices.pipelines import PeerLink
from mucudnn.solver.devices.placement import place
from mucudnn.solver.devices.placement_graph import Edges, Operation, simulate_placement

GRAPHS = 200
BATCH = 32
LINKS = {"PCIe 3, 10 GB/s": PeerLink(0.01, 10e9), "NVLink, 150 GB/s": PeerLink(0.01, 150e9)}
DEVICE = "titanx"
SECONDS = 60.0


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield all figures."""
    yield _oracle()
    device = find_device(DEVICE)
    for (link_name, link), devices in itertools.product(LINKS.items(), (2, 4)):
        if graph := inception(link):
            yield from _place(f"inception_v3, {link_name}", *graph, devices)
        for name in ("googlenet", "resnet50"):
            network = bundled_network(name, BATCH).with_backward()
            start = time.perf_counter()
            placed = place_network(network, model_costs(network, device, divide=False), devices, link)
            details = {
                "operations": len(placed.steps), "one_device_ms": placed.one_device_ms,
                "ms": placed.placement.time_ms, "is_proven": placed.placement.is_proven,
                "seconds": round(time.perf_counter() - start, 2),
            }  # fmt: skip
            case = f"{name}, {link_name}, {devices} devices, chains together"
            yield Record("placement", case, "speedup over one device", placed.speedup, "ratio", details)


def _oracle() -> Record:
    """Return how many random graphs have a placement as good as the best of all."""
    rng, equal = random.Random(2019), 0
    for _ in range(GRAPHS):
        operations, edges = _random_graph(rng, rng.randint(1, 5))
        devices = rng.choice([2, 3])
        placed = place(operations, edges, devices)
        best = _best_of_all(operations, edges, devices)
        equal += math.isclose(placed.time_ms, best, rel_tol=1e-6, abs_tol=1e-9) and placed.is_proven
    return Record("placement", "random graphs", "equal to the best of all placements", equal, f"of {GRAPHS}")


def _place(name: str, operations: list[Operation], edges: Edges, devices: int) -> Iterator[Record]:
    alone = math.fsum(operation.time_ms for operation in operations)
    for merges, words in ((True, "chains together"), (False, "each operation alone")):
        placed = place(operations, edges, devices, merges_chains=merges, time_limit=SECONDS)
        details = {
            "operations": len(operations), "one_device_ms": alone, "ms": placed.time_ms,
            "bound_ms": placed.bound_ms, "is_proven": placed.is_proven, "programs": placed.programs,
            "seconds": round(placed.seconds, 2),
        }  # fmt: skip
        case = f"{name}, {devices} devices, {words}"
        yield Record("placement", case, "speedup over one device", alone / placed.time_ms, "ratio", details)


def inception(link: PeerLink) -> tuple[list[Operation], dict[tuple[int, int], float]] | None:
    """Return the operations of torchvision's Inception-V3, forward and backward; None without torchvision.

    A backward pass is taken for twice the forward pass.
    """
    import torch
    from torch.fx import symbolic_trace
    from torch.fx.passes.shape_prop import ShapeProp

    try:
        from torchvision.models import inception_v3
    except (ImportError, RuntimeError):  # the latter where it was built for another PyTorch
        return None
    model = inception_v3(aux_logits=False, init_weights=False, transform_input=False).to("meta")
    graph = symbolic_trace(model)
    ShapeProp(graph).propagate(torch.empty(BATCH, 3, 299, 299, device="meta"))
    modules, device = dict(graph.named_modules()), find_device(DEVICE)
    nodes = [node for node in graph.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]
    index = {node: i for i, node in enumerate(nodes)}
    operations, edges = [], {}
    for node in nodes:
        elements = node.meta["tensor_meta"].shape.numel()
        traffic, flops = elements, 0.0
        for source in node.all_input_nodes:
            size = source.meta["tensor_meta"].shape.numel()
            traffic += size
            if source in index:
                edges[index[source], index[node]] = 2 * link.milliseconds(4 * size)
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        if isinstance(module, torch.nn.Conv2d):
            flops = 2.0 * elements * module.in_channels * math.prod(module.kernel_size)
        seconds = max(flops / (EFFICIENCY * device.flops), 4 * traffic / device.bandwidth)
        operations.append(Operation(3e3 * seconds))
    return operations, edges


def _random_graph(rng: random.Random, count: int) -> tuple[list[Operation], dict[tuple[int, int], float]]:
    operations = [Operation(rng.choice([0.0, 1.0, rng.uniform(0, 5)])) for _ in range(count)]
    pairs = itertools.combinations(range(count), 2)
    edges = {pair: rng.choice([0.0, rng.uniform(0, 4)]) for pair in pairs if rng.random() < 0.4}
    return operations, edges


def _best_of_all(operations: list[Operation], edges: Edges, devices: int) -> float:
    count = len(operations)
    orders = [
        order
        for order in itertools.permutations(range(count))
        if all(order.index(i) < order.index(j) for i, j in edges)
    ]
    return min(
        max(
            s + o.time_ms
            for s, o in zip(simulate_placement(operations, edges, where, order), operations, strict=True)
        )
        for where in itertools.product(range(devices), repeat=count)
        if not where[0]
        for order in orders
    )

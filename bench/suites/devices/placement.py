"""Placement: the speedup that the solver predicts for networks on several devices, with modelled costs."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator

from bench.lib.record import Record
from mucudnn.measuring.modelled_device import find_device
from mucudnn.plans.devices.placing import place_network
from mucudnn.plans.memory.costs import model_costs
from mucudnn.problems.bundled import bundled_network
from mucudnn.solver.devices.pipelines import PeerLink

BATCH = 32
LINKS = {"PCIe 3, 10 GB/s": PeerLink(0.01, 10e9), "NVLink, 150 GB/s": PeerLink(0.01, 150e9)}
NETWORKS = ("googlenet", "resnet50")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the speedup of each network over one Titan X."""
    for (link_name, link), devices, name in itertools.product(LINKS.items(), (2, 4), NETWORKS):
        network = bundled_network(name, BATCH).with_backward()
        costs, start = model_costs(network, find_device("titanx"), divide=False), time.perf_counter()
        placed = place_network(network, costs, devices, link)
        details = {
            "operations": len(placed.steps), "one_device_ms": placed.one_device_ms,
            "ms": placed.placement.time_ms, "is_proven": placed.placement.is_proven,
            "seconds": round(time.perf_counter() - start, 2),
        }  # fmt: skip
        case = f"{name}, {link_name}, {devices} devices, chains together"
        yield Record("placement", case, "speedup over one device", placed.speedup, "ratio", details)

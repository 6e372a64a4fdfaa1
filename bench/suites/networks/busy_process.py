"""Steps of one network in a process of its own, for the program `busy`. It prints one line of JSON.

usage: python -m bench.suites.networks.busy_process NETWORK WAY --steps N

WAY is `stock`, or `converted` with the cache in MUCUDNN_CACHE. With `--sizes` each step has images of another
random size, and both ways run interleaved.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import time
from typing import Any

import torch

import mucudnn.torch
from bench.lib.process import keep_freed_memory
from bench.suites.networks.networks import NETWORKS
from bench.suites.networks.zoo import loss_of, torchvision_models


def main() -> None:
    """Run the steps, and print the seconds of each."""
    parser = argparse.ArgumentParser(prog="python -m bench.suites.networks.busy_process", description=__doc__)
    parser.add_argument("network")
    parser.add_argument("way", choices=("stock", "converted", "both"))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--limit", help="a workspace limit that the program names")
    parser.add_argument("--sizes", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    torch.manual_seed(1)
    stock: Any = torchvision_models().get_model(arguments.network)
    ours = mucudnn.torch.convert(copy.deepcopy(stock), workspace=arguments.limit)
    models = {"stock": [stock], "converted": [ours], "both": [stock, ours]}[arguments.way]
    size = NETWORKS.get(arguments.network, ("", (3, 224, 224)))[1][-1]
    sizes, seconds = random.Random(1), [list[float]() for _ in models]
    for _ in range(arguments.steps):
        side = sizes.randrange(96, 257) if arguments.sizes else size
        x = torch.randn(arguments.batch, 3, side, side)
        for model, own in zip(models, seconds, strict=True):
            own.append(timed_step(model, x))
    print(json.dumps({"seconds": seconds, "way": _way(ours)}))


def timed_step(model: torch.nn.Module, x: torch.Tensor) -> float:
    """Return the seconds of a training step without the optimizer."""
    start = time.perf_counter()
    model.zero_grad(set_to_none=True)
    loss_of(model(x)).backward()
    return time.perf_counter() - start


def _way(model: torch.nn.Module) -> str | None:
    layers = (layer for module in model.modules() if (layer := getattr(module, "_mucudnn", None)))
    comparison = next(layers).comparison
    return None if comparison is None else comparison.result


if __name__ == "__main__":
    main()

"""`python -m bench.gpu.torch_step NETWORK`: training steps of PyTorch, in a process of its own.

A program like any other: it does not know of mucudnn, which comes in front of its cuDNN by `mucudnn run`.
Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch

from bench.gpu.torch_timing import milliseconds, versions, wall_milliseconds
from bench.models import TRAINED, trained

MIB = 2**20


def main() -> None:
    """The first step, which finds algorithms, and those after it; memory is the most of all of them."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.torch_step", description=__doc__)
    parser.add_argument("network", choices=TRAINED)
    parser.add_argument("--benchmark", action="store_true", help="set torch.backends.cudnn.benchmark")
    parser.add_argument("--steps", type=int, default=10, help="after the first")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.backends.cudnn.benchmark = arguments.benchmark

    model, x = (part.to(device) for part in trained(arguments.network, small=device.type != "cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    first = wall_milliseconds(device, step)
    times = [milliseconds(device, step) for _ in range(arguments.steps)]
    peak = torch.cuda.max_memory_allocated(device) / MIB if device.type == "cuda" else None
    answer = {"step_ms": statistics.median(times), "first_ms": first, "peak_mib": peak}
    print(json.dumps({**answer, "losses": [loss.item().hex() for loss in losses], **versions(device)}))


if __name__ == "__main__":
    main()

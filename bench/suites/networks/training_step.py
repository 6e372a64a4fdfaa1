"""The time and the memory of training steps, printed as one line of JSON.

usage: python -m bench.suites.networks.training_step NETWORK LIMIT

A step of `volume` is the forward pass of one volume only. The LIMIT `stock` stands for PyTorch's own
convolutions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

import mucudnn.torch
from bench.lib.models import build

STEPS = 3


def main() -> None:
    """Run one step that is not timed and STEPS that are. Print the median time and the peak of all steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("network", choices=("resnet18", "unet3d", "volume"))
    parser.add_argument("limit")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model, x = build(arguments.network)
    small = torch.nn.Conv2d(1, 1, 1)  # its call loads the libraries, whose memory does not count
    if arguments.limit != "stock":
        mucudnn.torch.convert(model, workspace=arguments.limit)
        mucudnn.torch.convert(small)
    small(torch.ones(1, 1, 8, 8)).sum().backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    before, times, loss = status("VmRSS"), [], torch.zeros(())
    for _ in range(1 + STEPS):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.set_grad_enabled(arguments.network != "volume"):
            loss = model(x).square().mean()
        if loss.requires_grad:
            loss.backward()
            optimizer.step()
        times.append((time.perf_counter() - start) * 1e3)
    peak = status("VmHWM") - before
    print(json.dumps({"ms": statistics.median(times[1:]), "peak": peak, "loss": loss.item()}))


def status(field: str) -> int:
    """Return the bytes in a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


if __name__ == "__main__":
    main()

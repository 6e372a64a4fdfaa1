"""Time training steps of PyTorch.

The program does not import mucudnn: `mucudnn run` puts the drop-in in front of its cuDNN. It prints one line
of JSON.
"""

from __future__ import annotations

import argparse
import json

import torch

from bench.lib.models import TRAINED, build_trained
from bench.suites.gpu.torch_timing import median_milliseconds, peak_mib, versions, wall_milliseconds


def main() -> None:
    """Time the first step, in which cuDNN finds algorithms, and later ones; print times and the peak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=TRAINED)
    parser.add_argument("--benchmark", action="store_true", help="set torch.backends.cudnn.benchmark")
    parser.add_argument("--steps", type=int, default=10, help="steps for the median, after two others")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.backends.cudnn.benchmark = arguments.benchmark

    model, x = (part.to(device) for part in build_trained(arguments.network, small=device.type != "cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()

    first = wall_milliseconds(device, step)
    ms = median_milliseconds(device, step, arguments.steps)
    answer = {"step_ms": ms, "first_ms": first, "peak_mib": peak_mib(device)}
    print(json.dumps({**answer, **versions(device)}))


if __name__ == "__main__":
    main()

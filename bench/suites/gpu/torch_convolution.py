"""Time a 3x3 convolution of PyTorch in bf16.

The program does not import mucudnn: `mucudnn run` puts the drop-in in front of its cuDNN. It prints one line
of JSON.
"""

from __future__ import annotations

import argparse
import json

import torch

from bench.suites.gpu.torch_timing import MIB, median_milliseconds, peak_mib, versions, wall_milliseconds

ROUNDING = 32 * MIB  # bytes that PyTorch's allocator may add by rounding up, for all tensors together
TYPE, RUNS = torch.bfloat16, 3


def main() -> None:
    """Time forward calls, and print the ms of the first one and of the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", type=int, nargs=4, help="mini-batch, channels, height and width, stride")
    parser.add_argument("--free-mib", type=int, help="memory that PyTorch may allocate beside x, w and y")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(1)
    batch, channels, size, stride = arguments.shape
    convolution = torch.nn.Conv2d(channels, channels, 3, stride, bias=False).to(device, TYPE)
    with torch.inference_mode():
        x = torch.randn((batch, channels, size, size), device=device, dtype=TYPE)
        if arguments.free_mib is not None and device.type == "cuda":
            y_bytes = batch * channels * ((size - 3) // stride + 1) ** 2 * x.itemsize
            leave_free(y_bytes + arguments.free_mib * MIB)
        first = wall_milliseconds(device, lambda: convolution(x))
        ms = median_milliseconds(device, lambda: convolution(x), RUNS)
    answer = {"ms": ms, "first_ms": first, "peak_mib": peak_mib(device)}
    print(json.dumps({**answer, **versions(device)}))


def leave_free(size: int) -> None:
    """Limit PyTorch's allocator to `size` bytes more than it holds now; cuDNN's workspaces come from it.

    The device's own memory stays free, so that the limit concerns tensors and workspaces only.
    """
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties().total_memory
    allowed = torch.cuda.memory_reserved() + size + ROUNDING
    torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total))


if __name__ == "__main__":
    main()

"""The measured rates of a GPU: copies to and from host memory, its own memory, products of matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch

from mucudnn.measuring.modelled_device import EFFICIENCY, ModelledDevice
from mucudnn.solver.memory.copies import PIECE, Link

_SIDE = 4096  # rows and columns of the matrices that are multiplied


def measure_link(device: torch.device) -> Link:
    """Return the bandwidths of both copy engines, measured with pinned copies of 64 MiB."""
    host = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty(PIECE, dtype=torch.uint8, device=device)
    out = _seconds(device, lambda: host.copy_(on_device, non_blocking=True))
    back = _seconds(device, lambda: on_device.copy_(host, non_blocking=True))
    return Link(PIECE / out, PIECE / back)


def measure_rates(device: torch.device) -> ModelledDevice:
    """Return the device with measured rates of its memory and of products in f32, f16 and bf16."""
    bandwidth = _measure_memory(device)
    flops = {}
    for name, data_type in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)):
        # The model multiplies the peak by its efficiency, which the measurement already includes.
        flops[name] = _measure_product(device, data_type) / EFFICIENCY
    name = torch.cuda.get_device_name(device)
    total = torch.cuda.get_device_properties(device).total_memory
    return ModelledDevice(name, flops["f32"], flops, bandwidth, bandwidth, total, "measured rates")


def _measure_memory(device: torch.device) -> float:
    """Return the bytes per second that the device reads and writes."""
    source = torch.empty(4 * PIECE, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 8 * PIECE / _seconds(device, lambda: target.copy_(source))


def _measure_product(device: torch.device, data_type: torch.dtype) -> float:
    """Return the operations per second of a product of matrices."""
    ones = torch.ones(_SIDE, _SIDE, dtype=data_type, device=device)
    return 2 * _SIDE**3 / _seconds(device, lambda: ones @ ones)


def _seconds(device: torch.device, work: Callable[[], object]) -> float:
    """Return the least seconds of five runs, after a run that does not count."""
    work()
    times: list[float] = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize(device)
        times.append(max(begin.elapsed_time(end), 1e-3) / 1e3)
    return min(times)

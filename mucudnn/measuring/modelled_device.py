"""Modelled costs: the roofline of a named device, for planning without that device.

A matrix product reaches half of the peak. Every other operation takes the time to read and write its tensors.
Where times of the device were recorded, they correct those of its 2-D convolutions. Use these figures to
compare plans, not to predict the time of a training step. `modelled_devices.json` lists the devices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from mucudnn._native import Problem
from mucudnn.codec import convert, parse_json
from mucudnn.errors import UsageError, shown, suggestion
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.problems.steps import DATA_TYPES
from mucudnn.promises import STRICT
from mucudnn.solver import Configuration, MicroConfiguration, desirable_set
from mucudnn.solver.memory.copies import Link

EFFICIENCY = 0.5  # the share of the peak that matrix products reach
# Measured on an H200 with PyTorch 2.11 and CUDA 13 after training steps of seven models of torchvision:
# 767 to 783 MiB of context and 65 MiB of libraries and workspaces. Other devices are assumed to take as much.
CONTEXT = 848 * 2**20


@dataclass(frozen=True, eq=False)
class ModelledDevice:
    """A device's speed, in operations and bytes per second, and its memory.

    - `flops`: without tensor cores, in f32.
    - `tensor_flops`: with tensor cores, by data type; f32 runs as TF32. Empty for a device without them.
    - `bandwidth`: of the device's memory. `link`: of one direction between device and host.
    - `memory`: bytes of the device. `context`: those of them that PyTorch takes before the first tensor, for
      the CUDA context, loaded libraries and cuBLAS's workspaces.
    - `recorded`: the recorded over the modelled time by form ("f32 nchw") and algorithm, if times of the
      device were recorded; `recorded_as` names it there.
    """

    name: str
    flops: float
    tensor_flops: dict[str, float]
    bandwidth: float
    link: float
    memory: int
    source: str
    recorded_as: str = ""
    recorded: dict[str, dict[str, float]] = field(default_factory=dict)
    context: int = CONTEXT

    def peak(self, data_type: str) -> float:
        """Return the peak operations per second of matrix products."""
        return self.tensor_flops.get(data_type, self.flops)

    def link_of(self, bandwidth: float | None = None) -> Link:
        """Return the link to the host, with `bandwidth` instead of the device's own in each direction."""
        each = self.link if bandwidth is None else bandwidth
        return Link(each, each)

    def factors(self, problem: Problem) -> Mapping[str, float]:
        """Return the recorded over the modelled time of algorithms, for a problem like the recorded ones."""
        is_plain = problem.dims == 2 and problem.groups == 1
        return self.recorded.get(f"{problem.data_type} {problem.layout}" if is_plain else "", {})

    def name_costs(self, kernels: Iterable[Kernel]) -> str:
        """Return where the modelled times of kernels come from, for people."""
        is_calibrated = any(self.factors(kernel.problem) for kernel in kernels)
        return f"calibrated on records of {self.recorded_as}" if is_calibrated else "modelled"


_LISTED = parse_json(Path(__file__).with_name("modelled_devices.json").read_text("utf-8"))
DEVICES = {device.name: device for device in convert(_LISTED["devices"], list[ModelledDevice])}


def find_device(name: str) -> ModelledDevice:
    """Return the modelled device of this name. Raises UsageError."""
    if name in DEVICES:
        return DEVICES[name]
    hint = suggestion(str(name), DEVICES)
    raise UsageError(f"{shown(name)} is not a modelled device{hint} There are {', '.join(DEVICES)}")


def device_like(gpu: str) -> ModelledDevice:
    """Return the device whose name a GPU's own name contains, such as NVIDIA H100 PCIe; else the H200."""
    text = re.sub("[^a-z0-9]", "", gpu.lower())
    return DEVICES[max((name for name in DEVICES if name in text), key=len, default="h200")]


def modelled_configurations(device: ModelledDevice, kernel: Kernel, policy: str) -> tuple[Configuration, ...]:
    """Return a kernel's desirable set at the micro-batch sizes of a policy."""
    # The forward and backward passes of a convolution have the same modelled times.
    return _find_desirable(device, replace(kernel, pass_="forward"), *usable_sizes(policy, kernel))


@lru_cache(1024)
def _find_desirable(device: ModelledDevice, kernel: Kernel, *sizes: int) -> tuple[Configuration, ...]:
    measured = [part for size in sizes for part in modelled_algorithms(device, kernel, size)]
    return tuple(desirable_set(measured, kernel.mini_batch))


def modelled_ms(device: ModelledDevice, flops: int, traffic: int, data_type: str = "f32") -> float:
    """Return the ms of an operation that is not a kernel; `traffic` is the bytes it reads and writes."""
    products = flops / (EFFICIENCY * device.peak(data_type))
    return max(products, traffic / device.bandwidth) * 1e3


def modelled_algorithms(device: ModelledDevice, kernel: Kernel, size: int) -> list[MicroConfiguration]:
    """Return the modelled algorithms at a micro-batch size, calibrated where times were recorded.

    Only forward passes were recorded; their factors hold for all passes.

    - implicit GEMM, which needs no workspace, and the one that computes the offsets into the input before;
    - for a 3x3 filter with stride 1: fused Winograd F(2x2, 3x3), and non-fused Winograd F(4x4, 3x3), whose
      workspace holds all transformed tensors;
    - on tensor cores: a product that copies input and result to channels-last, unless they have that layout.

    Strict arithmetic excludes Winograd, and in fp32 the tensor cores, which round to TF32.
    """
    problem, is_strict = kernel.problem.replace(mini_batch=size), kernel.problem.math == STRICT
    bytes_of = DATA_TYPES[problem.data_type]
    x, y, w = (bytes_of * n for n in (problem.x_elements, problem.y_elements, problem.w_elements))
    flops = 2 * problem.y_elements * (problem.in_channels // problem.groups) * math.prod(problem.kernel)
    traffic = (x + y + w) / device.bandwidth * 1e3
    gemm = flops / (EFFICIENCY * device.flops) * 1e3
    algorithms = [
        ("IMPLICIT_GEMM", max(gemm, traffic), 0),
        ("IMPLICIT_PRECOMP_GEMM", max(gemm, traffic), 6 * math.prod(problem.output)),
    ]
    is_winograd = all(n == 3 for n in problem.kernel) and problem.dims == 2 and problem.groups == 1
    if is_winograd and not is_strict and all(n == 1 for n in (*problem.stride, *problem.dilation)):
        transforms = int(2.25 * (x + y) + 4 * w)
        moved = (x + y + w + 2 * transforms) / device.bandwidth * 1e3
        algorithms += [
            ("WINOGRAD", max(gemm / 1.5, traffic), 16 * w // 9),
            ("WINOGRAD_NONFUSED", gemm / 4 + moved, transforms),
        ]
    peak = device.tensor_flops.get(problem.data_type)
    if peak is not None and not (is_strict and problem.data_type == "f32"):
        copies = 0 if problem.layout == "nhwc" else x + y
        product = flops / (EFFICIENCY * peak) * 1e3
        moved = 2 * copies / device.bandwidth * 1e3
        algorithms.append(("TENSOR_CORES", max(product, traffic) + moved, copies))
    factors = device.factors(problem)
    return [
        MicroConfiguration(size, name, factors.get(name, 1.0) * ms, workspace)
        for name, ms, workspace in algorithms
    ]

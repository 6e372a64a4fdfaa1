"""`plan`: choose the mesh and the places to gather, from the costs of the parts of each convolution."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import torch
from torch import nn

from mucudnn.arrays.call import limit_in_bytes
from mucudnn.errors import NothingFitsError, UsageError
from mucudnn.plans.devices.spatial_plan import SpatialPlan
from mucudnn.sizes import format_size
from mucudnn.solver.devices.pipelines import PeerLink
from mucudnn.torch.parallel.spatial.planning.choosing import Chooser, Measured, Time
from mucudnn.torch.parallel.spatial.planning.tracing import NAMES
from mucudnn.torch.tracing.trace import copy_without_memory
from mucudnn.torch.windows.spans import factorisations

_USUAL = PeerLink(0.01, 10e9)


def plan(
    model: nn.Module,
    shape: Sequence[int],
    *,
    world: int,
    memory: int | str | None = None,
    link: PeerLink = _USUAL,
    workspace: int | str | None = None,
    training: bool = True,
    device: str = "cpu",
    time_ms: Time | None = None,
    rate: float = 10e9,
) -> SpatialPlan:
    """Return the fastest division of a model over `world` ranks within `memory` bytes on each.

    `shape` is the mini-batch of all ranks together, (N, C, ...). The plan names a mesh with the dimensions
    data, depth, height and width, and the convolutions before which the tensor is gathered, over some
    dimensions or over all, if gathering pays. Every factorisation of `world` is tried. A divided convolution
    costs the best time of its part within `workspace`, the latency of each message, and the time of each byte
    of its halo. Other operators cost the time of their bytes at `rate` bytes a second, and twice as much in
    their backward pass. Dynamic programming over the convolutions finds the places to gather.

    `memory` limits the most bytes that a rank holds at any time: parameters, gradients, its part of the
    input, the tensors that autograd saves with the received rows, everything that operators hold meanwhile,
    and the largest workspace. The optimizer's state comes on top.

    The model is traced on the meta device, so it may be larger than the machine's memory. The parts are
    measured on this machine and kept in the cache, unless `time_ms` returns the time of a kernel. Only
    nn.Conv modules count as convolutions. Raises UsageError for a model that has no convolutions or cannot be
    traced, and NothingFitsError if no mesh fits.
    """
    limit = None if memory is None else limit_in_bytes("memory", memory)
    if world < 1 or len(shape) < 3 or not rate > 0:
        raise UsageError(
            f"world is {world}, the shape {tuple(shape)} and rate {rate}: give at least 1 rank, 3 axes, and "
            "bytes a second above 0"
        )
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    timer = time_ms or Measured(device, workspace)
    meta = copy_without_memory(model).train(training)
    model_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
    chooser = Chooser(meta, tuple(shape), link, timer, device, dtype, training, rate)
    choices = []
    for data, *sizes in factorisations(world, len(shape) - 1):
        if shape[0] % data or any(n < size for n, size in zip(shape[2:], sizes, strict=True)):
            continue
        names = ["data", *NAMES[: len(sizes)]]
        mesh = {name: size for name, size in zip(names, [data, *sizes], strict=True) if size > 1}
        choice = chooser.choose(mesh or {"data": 1}, shape[0] // data, tuple(sizes), limit)
        if choice is None:  # an operator before the first convolution refuses the division
            continue
        candidate, layers = choice
        if training:  # gradients of all parameters, as a ring reduces them
            reduced = link.milliseconds(2 * (world - 1) / world * model_bytes, 2 * (world - 1))
            candidate = replace(candidate, time_ms=candidate.time_ms + reduced)
        choices.append((candidate, layers))
    if not choices:
        if chooser.refusal is not None:
            raise chooser.refusal
        raise UsageError(f"{world} ranks cannot share {tuple(shape)}: no factorisation divides its axes")
    # The fastest of those that fit, then the smallest of the others.
    choices.sort(key=lambda c: (not c[0].fits, c[0].time_ms if c[0].fits else c[0].memory))
    best, layers = choices[0]
    if not best.fits or best.time_ms == inf:
        raise NothingFitsError(
            f"no mesh of {world} ranks fits {format_size(limit)} on each: the least is "
            f"{format_size(best.memory)}"
        )
    axes = {2 + i: name for i, name in enumerate(NAMES) if name in best.mesh}
    notes = (
        f"link: {link.latency_ms * 1e3:g} µs a message, {link.bandwidth / 1e9:g} GB/s (given, not measured)",
        "times of convolutions: given by the caller"
        if time_ms
        else f"times of convolutions: measured on {device}",
        f"times of other operators: their bytes at {rate / 1e9:g} GB/s (given, not measured)",
        "memory: traced, with the largest workspace; not counted: the optimizer's state",
    )
    return SpatialPlan(
        best.mesh, axes, best.gather_before, best.time_ms, best.memory, limit, layers,
        tuple(candidate for candidate, _ in choices if candidate.time_ms < inf), notes, best.stages,
    )  # fmt: skip

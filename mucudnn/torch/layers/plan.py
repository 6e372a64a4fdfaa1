"""`plan`: decide how to divide each convolution of a model."""

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mucudnn import settings
from mucudnn.arrays.call import LogListener, PassCall, bytes_of, geometry, limit_of
from mucudnn.arrays.devices import ArrayDevice, device_named
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import FRAMEWORK
from mucudnn.errors import MixedDevicesError, UsageError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Exhaustive, Race
from mucudnn.measuring.source import runs_stock
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import optimize
from mucudnn.plans.plan import Plan
from mucudnn.plans.result import to_plan
from mucudnn.problems.kernels import Kernel
from mucudnn.promises import promise_of
from mucudnn.torch.layers.convert import convolutions
from mucudnn.torch.layers.converted import Call, operands_of
from mucudnn.torch.layers.run_once import run_once
from mucudnn.torch.layers.settings import ConversionSettings
from mucudnn.torch.operators import stock
from mucudnn.torch.operators.passes import can_divide, needed_passes


def plan(
    model: Any,
    example_input: Any,
    *,
    workspace: int | str | None = None,
    total_workspace: int | str | None = None,
    thorough: bool = False,
    numerics: str | None = None,
    batch_invariant: bool | None = None,
    choice: str | None = None,
) -> Plan:
    """Return a plan that says how to divide each convolution of a model, for `convert(model, plan=...)`.

    The model runs once on `example_input` (a tensor, or a tuple of arguments), uncompiled, to find the shapes
    of every nn.Conv1d, 2d and 3d that can be divided. The plan has its forward pass, and the backward passes
    whose gradients are enabled and needed. The model's buffers and the random number generators keep their
    state. Then every kernel is measured in a race, decided and run whole, as by `mucudnn optimize`. If groups
    of channels are even faster, the plan has them in addition to the configuration. With `thorough` every
    algorithm is measured at every size, in many runs.

    Each pass of each convolution uses at most `workspace` bytes ("64MiB", "none"; by default
    MUCUDNN_WORKSPACE_LIMIT). With `total_workspace` all passes together use at most that many bytes, for
    programs in which every pass keeps its own workspace. Identical layers may then run different
    configurations, which makes better use of a small total. `numerics`, `batch_invariant` and `choice` are as
    in `convert`, and the plan's header keeps them. `mucudnn.write_plan` writes the plan to a file.

    Raises UsageError (a ValueError) for a model without convolutions and for both limits at once, also for a
    total with `batch_invariant`,
    MixedDevicesError for convolutions on several devices, and NothingFitsError; the last two are
    RuntimeErrors.
    """
    if workspace is not None and total_workspace is not None:
        raise UsageError("workspace and total_workspace exclude each other: one limit is enough")
    if total_workspace is None:
        limits = Limits(workspace=limit_of(workspace))
    else:
        limits = Limits(total=bytes_of("total_workspace", total_workspace))
    promise = promise_of(numerics, batch_invariant, choice)
    name, device, kernels = _kernels(model, example_input, ConversionSettings(promise=promise))
    source = stock.source_of(name)
    listener, policy = LogListener(), settings.BATCH_POLICY.read()
    with Cache.of_user(listener, needed=False) as cache:
        bench = Bench(device.engine, cache, listener, Exhaustive() if thorough else Race(), source)
        planned = to_plan(optimize(bench, kernels, policy, limits, promise=promise))
    if any(runs_stock(c) for kernel in planned.kernels for c in kernel.answers):
        planned.header[FRAMEWORK] = source.machine.library
    return planned


def _kernels(
    model: Any, example_input: Any, settings: ConversionSettings
) -> tuple[str, ArrayDevice, list[Kernel]]:
    """Run the model once. Return its device and its kernels with the number of calls to each.

    Raises UsageError if no convolution can be divided, MixedDevicesError if they are on several devices.
    """
    counts: Counter[Kernel] = Counter()
    devices: dict[str, PassCall] = {}

    def record(call: Call, output: Tensor) -> None:
        if not can_divide(call.input, call.weight):
            return
        needed = needed_passes(call.input, call.weight)
        with torch.no_grad():
            operands = operands_of(call, settings)
            calls = operands.calls(needed)
        devices[calls["forward"].device] = calls["forward"]
        counts.update(Kernel(geometry(own)[0], pass_) for pass_, own in calls.items())

    run_once(model, example_input, convolutions(model), record)
    if not counts:
        raise UsageError(
            "no convolution of the model ran on the example input that could be divided: "
            "there is nothing to plan"
        )
    if len(devices) > 1:
        raise MixedDevicesError(f"the convolutions are on {' and '.join(sorted(devices))}: plan each alone")
    ((name, call),) = devices.items()
    kernels = [replace(kernel, count=count) for kernel, count in counts.items()]
    return name, device_named(name, call.threads), kernels

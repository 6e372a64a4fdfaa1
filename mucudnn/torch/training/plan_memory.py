"""`plan_memory`: a memory plan of a PyTorch model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from mucudnn.arrays.call import LogListener, bytes_of, limit_of
from mucudnn.arrays.devices import device_named
from mucudnn.costs.cache import Cache
from mucudnn.errors import ArgumentTypeError, UsageError, shown
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.modelled_device import device_like, find_device
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.memory.costs import measure_costs, model_costs
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.memory.planning import MemoryOptions, plan_trace
from mucudnn.plans.memory.training_step import Costs
from mucudnn.problems.network import Network
from mucudnn.promises import FIXED, promise_of
from mucudnn.solver.memory.copies import Link
from mucudnn.torch.tracing.trace import trace_model
from mucudnn.torch.training.rates import measure_link, measure_rates
from mucudnn.torch.training.runtime import check_unsharded, device_of


def plan_memory(
    model: nn.Module,
    example_input: Any,
    *,
    memory: int | str,
    workspace: int | str | None = "none",
    policy: str = "joint",
    recompute: bool = True,
    host_memory: int | str | None = None,
    bandwidth: float | None = None,
    exact: bool = False,
    device: str | None = None,
    numerics: str | None = None,
    batch_invariant: bool | None = None,
    choice: str | None = None,
) -> MemoryPlan:
    """Return a plan with which a training step of the model fits `memory` bytes, as fast as possible.

    The plan has each convolution's division, and says for each tensor that autograd saves whether it stays,
    moves to host memory, or is computed again. `apply(model, plan)` runs it.

    Args:
        model: a model on a GPU in training mode. With `device`, on any device.
        example_input: a tensor or a tuple of arguments, as the model will get them. Its values are not read.
            With a tensor from `spatial.divide`, the plan is for this rank's part. Under torch.autocast, the
            plan is for steps under the same autocast.
        memory: bytes for parameters, gradients, activations, the input and workspaces, but not for the
            optimizer's state: a number or "12GiB".
        workspace: the most bytes of one convolution's workspace: a number, "64MiB", "none" for no limit but
            the memory, or None for MUCUDNN_WORKSPACE_LIMIT.
        policy: "joint", or one of vDNN's: "none", "all", "conv", "dynamic".
        recompute: False to compute nothing again.
        host_memory: the most bytes of host memory; None for no limit.
        bandwidth: bytes per second in each direction between host and device; by default it is measured.
        exact: True to search until the optimum is found.
        device: plan with modelled costs of a device: "titanx", "a100", "h100", "h200" or "gh200".
        numerics: the arithmetic of the convolutions, as in `convert`.
        batch_invariant: what the results promise, as in `convert`. Each convolution and each data gradient
            then has one configuration, whatever memory there is.
        choice: "fixed" to measure nothing, so that GPUs with the same name and library get the same plan. The
            costs are then modelled, for the modelled device whose name the GPU's name contains, else for the
            H200; cuDNN's heuristics order its algorithms. By default "measured".

    Raises:
        NothingFitsError: the memory is below the floor, which the message names.
        UsageError: the model is on the CPU and no device is given, is in evaluation mode, needs no gradients,
            is sharded by FSDP, or cannot be traced; or a size or policy cannot be used. Also for a modelled
            device with batch_invariant, which only the device itself shows, and for recurrent layers.
    """
    _check_model(model)
    options = MemoryOptions(
        memory=bytes_of("memory", memory),
        policy=policy,
        workspace=limit_of(workspace),
        recompute=recompute,
        host_memory=None if host_memory is None else bytes_of("host_memory", host_memory),
        exact=exact,
        promise=promise_of(numerics, batch_invariant, choice),
    )
    rate = _read_bandwidth(bandwidth)
    modelled = None if device is None else find_device(device)
    if modelled is None:
        device_of(model)
    elif options.promise.batch_invariant:
        raise UsageError(
            f"batch_invariant is tried on the device, and {shown(device)} is only modelled: plan on that "
            "GPU, without device="
        )
    trace = trace_model(model, example_input, strict=options.promise.is_strict)
    if trace.fused is not None:
        function, place = trace.fused
        raise UsageError(
            f"{place} calls {function}, for which a GPU has a fused kernel. It saves other tensors than the "
            "plain form that is traced, so a step could not follow a plan: plan the parts of the model "
            "around it, each for itself"
        )
    if trace.network.turn == len(trace.network.steps):
        raise UsageError(
            "no result of the model needs a gradient, so that nothing is saved: enable gradients and "
            "requires_grad of the parameters, plan a model that is trained, and return tensors alone or in "
            "tuples, lists and dicts"
        )
    costs = (
        model_costs(trace.network, modelled, bandwidth=rate)
        if modelled is not None
        else _costs_on_gpu(model, trace.network, rate, options)
    )
    return plan_trace(trace, costs, options, name=type(model).__name__, listener=LogListener())


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model is {shown(model)}, not a torch.nn.Module")
    check_unsharded(model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError("no parameter of the model needs a gradient: plan a model that is trained")
    if not model.training:
        raise UsageError(
            "the model is in evaluation mode, in which no step is planned: call model.train() before "
            "plan_memory"
        )
    if not torch.is_grad_enabled():
        raise UsageError("gradients are disabled: plan outside of no_grad and inference_mode")


def _read_bandwidth(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ArgumentTypeError(f"bandwidth is {shown(value)}: give bytes per second, such as 25e9")
    if not 0 < value < float("inf"):
        raise UsageError(f"bandwidth is {shown(value)}: it must be finite and above 0 bytes per second")
    return float(value)


def _costs_on_gpu(
    model: nn.Module, network: Network, bandwidth: float | None, options: MemoryOptions
) -> Costs:
    """Return costs with kernels, memory and link measured on the model's GPU; modelled for a fixed choice."""
    device, is_fixed = device_of(model), options.promise.choice == FIXED
    name = torch.cuda.get_device_name(device)
    rates = device_like(name) if is_fixed else measure_rates(device)
    if bandwidth is not None:
        link, source = Link(bandwidth, bandwidth), "given"
    elif is_fixed:
        link, source = rates.link_of(), "modelled"
    else:
        link, source = measure_link(device), "measured"
    listener = LogListener()
    with Cache.of_user(listener, needed=False) as cache:
        bench = Bench(device_named(f"cuda:{device.index or 0}").engine, cache, listener, Exhaustive())
        costs = measure_costs(
            network, bench, rates, link, link_source=source, promise=options.promise, limit=options.workspace
        )
    return replace(costs, device=name)

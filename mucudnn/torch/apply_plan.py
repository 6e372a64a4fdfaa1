"""`apply`, which makes a model follow a plan of any kind, and `restore`, which undoes it."""

from __future__ import annotations

from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn
from torch.utils.hooks import RemovableHandle

from mucudnn.errors import ArgumentTypeError, shown
from mucudnn.forks import no_fork
from mucudnn.input import AnyPath
from mucudnn.plans.any_plan import AnyPlan, read_plan
from mucudnn.plans.devices.spatial_plan import SpatialPlan
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.plan import Plan
from mucudnn.plans.stream_plan import StreamPlan
from mucudnn.torch.layers import convert
from mucudnn.torch.streaming.stream import Planned
from mucudnn.torch.training import apply as training

Model = TypeVar("Model")
_gathers: WeakKeyDictionary[Any, list[RemovableHandle]] = WeakKeyDictionary()  # hooks by model


def apply(model: Model, plan: AnyPlan | AnyPath) -> Model:
    """Make a model follow a plan, in place, and return the model. `restore` undoes it.

    The plan, or its file, comes from `mucudnn.torch.plan`, `plan_memory`, `spatial.plan` or
    `stream(...).plan`. Results and gradients of the model stay the same.

    **A plan of convolutions** divides them as `convert(model, plan=plan)` does.

    **A memory plan** takes effect in each forward pass in training mode, with gradients enabled and with the
    plan's shapes: saved tensors are moved and recomputed as the plan says, and its kernels divide the
    convolutions. Results and gradients stay the same bit by bit. Pinned host memory is allocated here, once.
    A step that deviates from the plan, such as one with a smaller last mini-batch, keeps its tensors on the
    device, and a MucudnnWarning says so once. If a step runs out of device memory, the error is the
    program's. Wrap the model in DistributedDataParallel after `apply`. Copies and pickles of the model have
    no memory plan. What modules save that torch.compile compiles stays on the device: compile them before
    `plan_memory`.

    **A spatial plan** gathers divided tensors before the layers, and over the mesh dimensions, that it names,
    and divides whole tensors again. Divide the model's input with the plan's `mesh` and `axes`.

    **A stream plan** runs the model in tiles, as `stream` does. The first call traces the model, and raises
    UsageError if the plan is for another model or other shapes.

    Raises:
        ArgumentTypeError: the model is not a torch.nn.Module, or the plan is not a plan.
        UsageError: the plan is for another model or device; for a memory plan also a model that is on the
            CPU, compiled, or sharded by FSDP.
        MixedDevicesError: the model of a memory plan is on several devices.
        NothingFitsError: there is not enough host memory for a memory plan.
        MucudnnError: the plan's file cannot be read.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model is {shown(model)}, not a torch.nn.Module")
    if not isinstance(plan, Plan | MemoryPlan | SpatialPlan | StreamPlan):
        plan = read_plan(plan)
    if isinstance(plan, Plan):
        return convert.convert(model, plan=plan)
    if isinstance(plan, MemoryPlan):
        return training.apply_memory(model, plan)
    if isinstance(plan, StreamPlan):
        model.forward = Planned(model, plan)
        return model
    with no_fork:
        # Imported late, because it needs a newer PyTorch.
        from mucudnn.torch.parallel.spatial.planning.following import divide_as_planned

    _stop_gathering(model)
    _gathers[model] = divide_as_planned(model, plan.layers, plan.stages)
    return model


def restore(model: Model) -> Model:
    """Undo `convert` and `apply`, in place, and return the model.

    Existing autograd graphs still get their tensors back. Raises ArgumentTypeError unless the model is a
    torch.nn.Module.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model is {shown(model)}, not a torch.nn.Module")
    _stop_gathering(model)
    if isinstance(model.forward, Planned):
        del model.forward
    training.restore_memory(model)
    return convert.restore(model)


def _stop_gathering(model: nn.Module) -> None:
    for handle in _gathers.pop(model, []):
        handle.remove()

"""`apply`: make a model train as a memory plan says. `restore` undoes it."""

from typing import Any, TypeVar

import torch
from torch import nn

from mucudnn.errors import ArgumentTypeError, UsageError, shown
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.sizes import spell_limit
from mucudnn.torch.layers import convert as modules
from mucudnn.torch.tracing.trace import fingerprint
from mucudnn.torch.training.runtime import Runtime, check_parts, device_of

Model = TypeVar("Model")


class _Planned:
    """A base class in front of the model's own: each forward pass runs under the memory plan."""

    _mucudnn_memory: Runtime | None = None

    def forward(self: Any, *args: Any, **given: Any) -> Any:
        """Run the model's own forward, under the plan if it is a training step."""
        runtime = self._mucudnn_memory
        own = super().forward  # type: ignore[misc]  # the model's method
        return own(*args, **given) if runtime is None else runtime.run(own, args, given)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        """Copy and pickle the model without its plan: a slab and streams belong to one process."""
        reduced: Any = super().__reduce_ex__(protocol)
        _, (_, *arguments), state, *rest = reduced
        kept = {name: value for name, value in state.items() if name != "_mucudnn_memory"}
        return type(self).__new__, (type(self).__bases__[1], *arguments), kept, *rest


def apply(model: Model, plan: MemoryPlan) -> Model:
    """Make a model train within a memory plan, in place, and return the model.

    Each forward pass in training mode, with gradients enabled and with the plan's shapes, then moves and
    recomputes saved tensors as the plan says. Results and gradients stay the same bit by bit; the plan's
    kernels divide the convolutions. Evaluation is as before. Pinned host memory is allocated here, once.

    A step that is not as planned, such as one with a smaller last mini-batch, keeps its tensors on the
    device, and a RuntimeWarning says so once. If a planned step runs out of device memory in its forward
    pass, the model restarts the pass once with the plan's next lower point, and keeps that one. If it runs
    out of memory while a tensor comes back in the backward pass, the error is the program's, and the next
    step uses the lower point.

    Wrap the model in DistributedDataParallel after `apply`. Copies and pickles of the model have no plan.
    Models sharded by FSDP are refused. In regions compiled by torch.compile nothing is moved.

    Raises UsageError (a ValueError) for a plan of another model or device, a model on the CPU, a compiled
    model and one that FSDP shards; MixedDevicesError for a model on several devices; NothingFitsError if
    there is not enough host memory.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model is {shown(model)}, not a torch.nn.Module")
    if not isinstance(plan, MemoryPlan):
        raise ArgumentTypeError(f"plan is {shown(plan)}: give a MemoryPlan of mucudnn.torch.plan_memory")
    if isinstance(model, torch._dynamo.eval_frame.OptimizedModule):
        raise UsageError(
            "the model is compiled, and torch.compile saves the tensors of compiled regions itself: apply "
            "the plan to the model around the compiled regions"
        )
    restore_memory(model)
    check_parts(model)
    device = device_of(model)
    plan.check(model=fingerprint(model), device=torch.cuda.get_device_name(device))
    own_kernels = [name for name in {kernel.module for kernel in plan.kernels} if name]
    runtime = Runtime(model, plan, lambda chosen: _divide(model, chosen, own_kernels))
    planned = type(type(model).__name__, (_Planned, type(model)), {"__module__": type(model).__module__})
    planned.__qualname__ = type(model).__qualname__
    model.__class__ = planned
    object.__setattr__(model, "_mucudnn_memory", runtime)
    return model


def restore(model: Model) -> Model:
    """Undo `convert` and `apply`, in place, and return the model.

    A graph that exists already still gets its tensors back. Raises ArgumentTypeError if it is no model.
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model is {shown(model)}, not a torch.nn.Module")
    restore_memory(model)
    return modules.restore(model)


def restore_memory(model: Any) -> None:
    """Undo `apply`; the convolutions stay divided."""
    if isinstance(model, _Planned):
        model.__class__ = type(model).__bases__[1]
        model.__dict__.pop("_mucudnn_memory", None)


def runtime_of(model: Any) -> Runtime:
    """Return the runtime of a model with a plan. Raises UsageError."""
    model = getattr(model, "module", model) if not isinstance(model, _Planned) else model
    if not isinstance(model, _Planned) or model._mucudnn_memory is None:
        raise UsageError("the model has no memory plan: call mucudnn.torch.apply(model, plan) first")
    return model._mucudnn_memory


def _divide(model: nn.Module, plan: MemoryPlan, names: list[str]) -> None:
    """Give the plan's kernels to the convolutions that have some."""
    for name in names:
        module = model.get_submodule(name)
        own = plan.for_module(name)
        limit = max(kernel.chosen.workspace for kernel in own.kernels)
        modules.divide(module, name, spell_limit(limit), str(own))

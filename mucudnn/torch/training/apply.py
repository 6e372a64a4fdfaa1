"""Models that train under a memory plan."""

from typing import Any, TypeVar

import torch
from torch import nn

from mucudnn.errors import UsageError
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.plan import LIMIT
from mucudnn.sizes import spell_limit
from mucudnn.torch.layers import convert as modules
from mucudnn.torch.tracing.compiled import is_compiled
from mucudnn.torch.tracing.trace import fingerprint
from mucudnn.torch.training.runtime import Runtime, check_unsharded, device_of

Model = TypeVar("Model")


class _Planned:
    """A class that precedes the model's own and runs each forward pass under the memory plan."""

    _mucudnn_memory: Runtime | None = None

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the model's own forward, under the plan if it is a training step."""
        runtime = self._mucudnn_memory
        own = super().forward  # type: ignore[misc]  # the model's method
        return own(*args, **kwargs) if runtime is None else runtime.run(own, args, kwargs)

    def __reduce_ex__(self: Any, protocol: Any) -> Any:
        """Copy and pickle the model without its plan, because a slab and streams belong to one process."""
        reduced: Any = super().__reduce_ex__(protocol)
        _, (_, *arguments), state, *rest = reduced
        kept = {name: value for name, value in state.items() if name != "_mucudnn_memory"}
        return type(self).__new__, (type(self).__bases__[1], *arguments), kept, *rest


def apply_memory(model: Model, plan: MemoryPlan) -> Model:
    """Make a module train under a memory plan, in place, and return it: see `mucudnn.torch.apply`."""
    if is_compiled(model):
        raise UsageError(
            "the model is compiled as a whole, and a compiled module saves its tensors itself: compile parts "
            "of the model instead, and plan it then"
        )
    restore_memory(model)
    check_unsharded(model)
    device = device_of(model)
    plan.check(model=fingerprint(model), device=torch.cuda.get_device_name(device))
    own_kernels = [name for name in {kernel.module for kernel in plan.kernels} if name]
    runtime = Runtime(model, plan, lambda chosen: _divide(model, chosen, own_kernels))
    planned = type(type(model).__name__, (_Planned, type(model)), {"__module__": type(model).__module__})
    planned.__qualname__ = type(model).__qualname__
    model.__class__ = planned
    object.__setattr__(model, "_mucudnn_memory", runtime)
    return model


def restore_memory(model: Any) -> None:
    """Undo `apply_memory`, except that the convolutions stay divided."""
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
    """Divide the convolutions of these names as the plan's kernels say."""
    for name in names:
        module = model.get_submodule(name)
        own = plan.for_module(name)
        limit = max(kernel.chosen.workspace for kernel in own.kernels)
        modules.divide(module, name, own.header.get(LIMIT, spell_limit(limit)), str(own))

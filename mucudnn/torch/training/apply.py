"""Models that train under a memory plan."""

from typing import Any, TypeVar

import torch
from torch import nn

from mucudnn.errors import UsageError
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.plan import LIMIT
from mucudnn.sizes import spell_limit
from mucudnn.torch.layers.convert import divide
from mucudnn.torch.layers.settings import ConversionSettings
from mucudnn.torch.tracing.compiled import is_compiled
from mucudnn.torch.tracing.trace import fingerprint
from mucudnn.torch.training.runtime import Runtime, check_unsharded, device_of

Model = TypeVar("Model")

_ATTRIBUTES = "forward", "__reduce_ex__"  # a planned model has these itself, and Python prefers them


class _PlannedForward:
    """The attribute `forward` of a model, which runs the model's own forward under the memory plan.

    The model keeps its class: in a subclass, `super(self.__class__, self)` in the model's code would find
    this code again and recurse without end.
    """

    def __init__(self, model: Any, runtime: Runtime) -> None:
        self.own, self.own_reduce, self.runtime = model.forward, model.__reduce_ex__, runtime
        self.replaced = {name: vars(model)[name] for name in _ATTRIBUTES if name in vars(model)}
        vars(model).update(forward=self, __reduce_ex__=self.reduce)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's own forward, under the plan if it is a training step."""
        return self.runtime.run(self.own, args, kwargs)

    def reduce(self, protocol: Any) -> Any:
        """Copy and pickle the model without its plan, because a slab and streams belong to one process."""
        make, arguments, state, *rest = self.own_reduce(protocol)
        state = {name: value for name, value in state.items() if name not in _ATTRIBUTES}
        return make, arguments, state | self.replaced, *rest


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
    runtime = Runtime(model, plan)
    _divide(model, plan)
    _PlannedForward(model, runtime)
    return model


def restore_memory(model: Any) -> None:
    """Undo `apply_memory`, except that the convolutions stay divided."""
    planned = vars(model).get("forward")
    if isinstance(planned, _PlannedForward):
        for name in _ATTRIBUTES:
            delattr(model, name)
        vars(model).update(planned.replaced)


def runtime_of(model: Any) -> Runtime:
    """Return the runtime of a model with a plan. Raises UsageError."""
    for forward in (model.forward, getattr(model, "module", model).forward):
        if isinstance(forward, _PlannedForward):
            return forward.runtime
    raise UsageError("the model has no memory plan: call mucudnn.torch.apply(model, plan) first")


def _divide(model: nn.Module, plan: MemoryPlan) -> None:
    """Divide the convolutions as the plan's kernels say."""
    for name in {kernel.module for kernel in plan.kernels} - {""}:
        module = model.get_submodule(name)
        own = plan.for_module(name)
        limit = max(kernel.chosen.workspace for kernel in own.kernels)
        workspace = own.header.get(LIMIT, spell_limit(limit))
        divide(module, ConversionSettings(workspace, str(own)))

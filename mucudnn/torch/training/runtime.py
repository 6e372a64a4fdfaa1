"""The run of a model's training steps under its memory plan."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from mucudnn.errors import MixedDevicesError, MucudnnWarning, UsageError
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.torch.private import keep_result
from mucudnn.torch.tracing.compiled import compiled_parts
from mucudnn.torch.tracing.saved import key_of, tensors_in
from mucudnn.torch.tracing.trace import spell_inputs
from mucudnn.torch.training.offload import Lanes
from mucudnn.torch.training.planned_step import DueCopies, PlannedRun
from mucudnn.torch.training.slab import Slab, pin


class Runtime:
    """A model's plan, with the streams and the slab that its training steps share."""

    def __init__(self, model: nn.Module, plan: MemoryPlan) -> None:
        """Allocate the pinned host memory that the plan offloads to.

        Raises UsageError, MixedDevicesError, NothingFitsError.
        """
        self._model, self.plan = model, plan
        self._compiled = compiled_parts(model)
        self._is_inside = False
        self._warned: set[str] = set()
        self.lanes = Lanes(device_of(model), plan.link.piece)
        self.host_memory = pin(plan.host_bytes)
        self.slab = Slab(self.host_memory, plan.tensors)
        self._schedule = DueCopies(plan)

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model's own `forward` under the plan."""
        inputs = tensors_in((args, kwargs))
        if not self._is_planned(inputs):
            return forward(*args, **kwargs)
        own = {key_of(x): x for x in (*inputs, *self._model.parameters(), *self._model.buffers())}
        step = PlannedRun(self._schedule, self.lanes, self.slab, own, self._compiled.values(), self.warn)
        # After a graph break in a compiled module, torch.compile would compile this hook, too.
        pack = torch.compiler.disable(step.pack) if self._compiled else step.pack
        hooks = saved_tensors_hooks(pack, lambda saved: saved.unpack())
        try:
            with self._alone(), step.followed(), hooks:
                result = forward(*args, **kwargs)
        except BaseException:
            step.abandon()
            raise
        step.end_forward()
        return result

    def _is_planned(self, inputs: list[Tensor]) -> bool:
        """Return whether this forward pass belongs to a training step that the plan is for."""
        if torch.compiler.is_compiling():
            _warn_of_compiling()
            return False
        if self._is_inside or not self._model.training or not torch.is_grad_enabled():
            return False
        if torch.cuda.is_current_stream_capturing():
            return self._refuse("a CUDA graph is captured")
        if _has_foreign_hooks():
            return self._refuse("other saved_tensors_hooks or a checkpoint surround the model")
        if compiled_parts(self._model) != self._compiled:
            return self._refuse("modules were compiled, or no longer are, since the plan was applied")
        shapes = spell_inputs(tuple(inputs))
        if shapes != tuple(self.plan.inputs):
            return self._refuse(
                f"the input is {', '.join(shapes)}, the plan is for {', '.join(self.plan.inputs)}"
            )
        check_unsharded(self._model)
        return True

    def _refuse(self, reason: str) -> bool:
        self.warn(f"the memory plan is not followed: {reason}")
        return False

    def warn(self, text: str) -> None:
        """Warn once of each kind of deviation from the plan."""
        kind = text.split(":")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"mucudnn: {text}", MucudnnWarning, stacklevel=2)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self._is_inside = True
        try:
            yield
        finally:
            self._is_inside = False


def device_of(model: nn.Module) -> torch.device:
    """Return the CUDA device of a model.

    Raises UsageError for a model on the CPU or without parameters, and MixedDevicesError.
    """
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        raise MixedDevicesError(f"the model is on {names}: a memory plan is for one device")
    if not devices or not (device := devices.pop()).type == "cuda":
        raise UsageError(
            "the model is not on a CUDA device, and a memory plan is for a GPU's memory: move the model to a "
            "GPU, or plan on modelled costs with plan_memory(..., device=...)"
        )
    return device


def check_unsharded(model: nn.Module) -> None:
    """Raise UsageError for a model that FSDP shards, whose parameters change their memory in each step."""
    kinds = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    kinds.update(type(parameter).__name__ for parameter in model.parameters())
    if kinds & {"FullyShardedDataParallel", "FSDPModule", "DTensor"}:
        raise UsageError(
            "the model is sharded by FSDP, which moves parameters itself: plan the model without FSDP, or "
            "use DistributedDataParallel after mucudnn.torch.apply"
        )


def _has_foreign_hooks() -> bool:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(True) is not None


@keep_result  # one warning for each compilation
def _warn_of_compiling() -> bool:
    warnings.warn(
        "mucudnn: torch.compile compiles the whole model, which then saves its tensors itself, so the memory "
        "plan is not followed: compile parts of the model instead, before plan_memory",
        MucudnnWarning,
        stacklevel=2,
    )
    return True

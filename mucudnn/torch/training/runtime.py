"""The runtime of a memory plan, which runs each forward pass of a model and handles a lack of memory."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from mucudnn.errors import MixedDevicesError, MucudnnWarning, UsageError
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.sizes import format_size
from mucudnn.torch.private import keep_result
from mucudnn.torch.tracing.compiled import compiled_parts
from mucudnn.torch.tracing.saved import key_of, tensors_in
from mucudnn.torch.tracing.trace import spell_inputs
from mucudnn.torch.training.offload import Lanes
from mucudnn.torch.training.planned_step import DueCopies, PlannedRun
from mucudnn.torch.training.slab import Slab, pin


class Runtime:
    """A model's plan, with the streams and the slab that its training steps share."""

    def __init__(self, model: nn.Module, plan: MemoryPlan, use: Callable[[MemoryPlan], None]) -> None:
        """Allocate pinned memory that is enough for the lower plan, too.

        `use` gives the kernels of a plan to the model's convolutions.
        Raises UsageError, MixedDevicesError, NothingFitsError.
        """
        self._model, self._use = model, use
        self._device = device_of(model)
        self._compiled = compiled_parts(model)
        self._is_inside = False
        self._warned: set[str] = set()
        self._is_short = False  # True after a backward pass ran out of memory
        self._state = _State(model, self._device)
        if plan.lower is not None:
            self._state.take([])  # allocates the copies now rather than in a step
        self.lanes = Lanes(self._device, plan.piece)
        # All host memory is pinned here, also that of the lower plan: pinning takes seconds, and a step that
        # has run out of memory may find none to pin.
        self.host_memory = pin(max(plan.host_bytes, plan.lower.host_bytes if plan.lower else 0))
        self.slab = Slab(self.host_memory)
        self.set_plan(plan)

    def set_plan(self, plan: MemoryPlan) -> None:
        """Use a plan from the next step on."""
        self.plan = plan
        self._schedule = DueCopies(plan)
        self.slab = Slab(self.host_memory, plan.tensors, self.slab)
        self._use(plan)

    def run(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the model's own `forward` under the plan.

        If the device has too little memory, run it again under the plan's next lower point.
        """
        inputs = tensors_in((args, kwargs))
        if not self._is_planned(inputs):
            return forward(*args, **kwargs)
        if self._is_short:
            self._is_short = False
            self._go_lower("the last backward pass")
        if self.plan.lower is None:
            return self._run_step(forward, args, kwargs, inputs)
        self._state.take(inputs)
        try:
            return self._run_step(forward, args, kwargs, inputs)
        except torch.cuda.OutOfMemoryError:
            if not self._state.can_return():
                raise
        finally:
            self._state.forget()
        self._state.return_to()
        self._go_lower("the forward pass")
        return self._run_step(forward, args, kwargs, inputs)

    def _run_step(
        self, forward: Callable[..., Any], args: Any, kwargs: dict[str, Any], inputs: list[Tensor]
    ) -> Any:
        own = {key_of(x): x for x in (*inputs, *self._model.parameters(), *self._model.buffers())}
        step = PlannedRun(
            self._schedule, self.lanes, self.slab, own, self._compiled.values(), self.warn,
            self._note_shortage,
        )  # fmt: skip
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

    def _go_lower(self, place: str) -> None:
        """Change to the plan's next lower point, if there is one."""
        lower = self.plan.lower
        if lower is None:
            return
        self.warn(
            f"{place} ran out of device memory under a plan for {format_size(self.plan.memory)}: the model "
            f"goes on with a plan for {format_size(lower.memory)}"
        )
        torch.cuda.empty_cache()
        self.set_plan(replace(lower, lower=None))  # a program goes lower only once

    def _note_shortage(self) -> None:
        self._is_short = True

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


class _State:
    """The state that a forward pass changes: buffers and random numbers."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._model, self._device = model, device
        self._copies: dict[torch.dtype, list[Tensor]] = {}
        self._inputs: list[tuple[Tensor, int]] = []
        self._random: tuple[Tensor, Tensor] | None = None

    def take(self, inputs: list[Tensor]) -> None:
        """Copy the state, and remember the inputs' versions."""
        self._inputs = [(x, x._version) for x in inputs]
        self._random = torch.get_rng_state(), torch.cuda.get_rng_state(self._device)
        for dtype, buffers in self._buffers().items():
            copies = self._copies.get(dtype, [])
            if [buffer.shape for buffer in copies] != [buffer.shape for buffer in buffers]:
                self._copies[dtype] = [buffer.clone() for buffer in buffers]
            else:
                torch._foreach_copy_(copies, buffers)  # a single launch

    def can_return(self) -> bool:
        """Return whether the inputs are unchanged."""
        return all(x._version == version for x, version in self._inputs)

    def return_to(self) -> None:
        """Set buffers and random numbers back."""
        for dtype, buffers in self._buffers().items():
            torch._foreach_copy_(buffers, self._copies[dtype])
        assert self._random is not None
        torch.set_rng_state(self._random[0])
        torch.cuda.set_rng_state(self._random[1], self._device)

    def forget(self) -> None:
        """Drop the references to the inputs."""
        self._inputs = []

    def _buffers(self) -> dict[torch.dtype, list[Tensor]]:
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for buffer in self._model.buffers():
            by_type.setdefault(buffer.dtype, []).append(buffer.detach())
        return by_type


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

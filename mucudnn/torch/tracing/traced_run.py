"""The run of a model on tensors without data: the recorder notes its steps, TracedRun its modules."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode

from mucudnn.errors import MucudnnError
from mucudnn.torch.tracing.attention import attend, multi_head_attention
from mucudnn.torch.tracing.recorder import NO_NODE, DraftStep, Memory, Recorder
from mucudnn.torch.tracing.saved import tensors_in

# A GPU has fused kernels for these functions. They save other tensors than the plain form on the device meta.
_FUSED = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell")


class AutocastInsideError(MucudnnError):
    """The forward pass enables autocast for a device itself, which has no effect on the device meta."""

    def __init__(self, device: str) -> None:
        super().__init__(f"the forward pass enables autocast for {device}")
        self.device = device


class _LikeCuda(TorchFunctionMode):
    """A mode in which functions save what they save on a GPU, such as dropout a mask of one byte an element.

    It records the first function for which that is not known. On the device meta it raises
    AutocastInsideError at the first function under autocast.
    """

    def __init__(self, recorder: Recorder, device: str) -> None:
        super().__init__()
        self._recorder, self._device = recorder, device

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._device == "meta":
            for kind in ("cuda", "cpu"):
                if torch.is_autocast_enabled(kind):
                    raise AutocastInsideError(kind)
        if function in (nn.functional.dropout, torch.dropout):
            x, p, training, in_place = _dropout_arguments(*args, **(kwargs or {}))
            if training and 0 < p < 1 and not in_place:
                return torch.native_dropout(x, p, True)[0]
        if function is nn.functional.scaled_dot_product_attention:
            return attend(function, *args, **(kwargs or {}))
        if function is nn.functional.multi_head_attention_forward:
            function = multi_head_attention
        name = getattr(function, "__name__", "")
        if name == "rms_norm":
            x, shape, weight, _ = _rms_norm_arguments(*args, **(kwargs or {}))
            if weight is None or weight.dtype == x.dtype:
                return _FusedNorm.apply(x, tuple(shape), weight)
        result = function(*args, **(kwargs or {}))
        if name in _FUSED and any(tensor.requires_grad for tensor in tensors_in(result)):
            self._recorder.fused = self._recorder.fused or (name, self._recorder.place)
        return result


def _dropout_arguments(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool | None = None
) -> tuple[Tensor, float, bool, bool]:
    return input, p, training if train is None else train, inplace


def _rms_norm_arguments(
    input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> tuple[Tensor, Any, Tensor | None, float | None]:
    return input, normalized_shape, weight, eps


class _FusedNorm(torch.autograd.Function):
    """A layer norm that saves what a GPU's RMS norm saves: one statistic of each row instead of two."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: tuple[int, ...], weight: Tensor | None) -> Tensor:
        """Save the input, the weight and the statistic."""
        y, _, statistic = torch.native_layer_norm(x, shape, weight, None, 1e-5)
        ctx.save_for_backward(x, weight, statistic)
        ctx.shape = shape
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, Tensor | None]:
        """Return gradients of the right sizes."""
        x, weight, statistic = ctx.saved_tensors
        mask = [True, weight is not None, False]
        dx, dw, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, x, ctx.shape, statistic, statistic, weight, None, mask
        )
        return dx, None, dw


@dataclass
class TracedRun:
    """A run of a model under the recorder, which learns in which module each operation runs."""

    recorder: Recorder
    model: nn.Module
    inputs: Any
    device: str
    lower: torch.dtype | None  # the type that autocast casts to; None without autocast
    compiled: Collection[str]

    def run(self) -> None:
        """Run the model forward, and backward if a result needs a gradient."""
        recorder, model = self.recorder, self.model
        for name, parameter in model.named_parameters():
            recorder.add_memory(parameter, name, "parameter" if parameter.requires_grad else "buffer")
        for name, buffer in model.named_buffers():
            recorder.add_memory(buffer, name, "buffer")
        for number, tensor in enumerate(tensors_in(self.inputs)):
            recorder.add_memory(tensor, f"input{number}" if number else "input", "input")
        args = self.inputs if isinstance(self.inputs, tuple) else (self.inputs,)
        # No hooks in the backward steps, as under a plan: a reentrant checkpoint saves tensors there.
        hooks = saved_tensors_hooks(recorder.pack, recorder.unpack)
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: self._begin(name), prepend=True)
            module.register_forward_hook(lambda *_, name=name: self._end(name))
        with recorder:
            # A disabled autocast here would keep the casts of an autocast in the forward pass to its end.
            around = nullcontext() if self.lower is None else torch.autocast(self.device, self.lower)
            with hooks, _LikeCuda(recorder, self.device), around:
                outputs = tensors_in(model(*args))
            torch.clear_autocast_cache()  # the end of the program's own autocast does so too
            self._differentiate(outputs)

    def _differentiate(self, outputs: list[Tensor]) -> None:
        recorder = self.recorder
        for output in outputs:
            memory = recorder.memory_of(output)
            if memory is not None and memory.kind == "activation":
                memory.kind = "output"
        recorder.end_forward()
        differentiated = [output for output in outputs if output.requires_grad]
        if not differentiated:
            return
        gradients = []
        for output in differentiated:
            memory = recorder.memory_of(output)
            assert memory is not None
            gradient = torch.empty_like(output)
            loss = DraftStep(recorder.unique("loss", "step"), "", 0, NO_NODE, True, {memory.name: None})
            recorder.add_memory(gradient, f"{memory.name}.grad", "activation")
            memory = recorder.memory_of(gradient)
            assert memory is not None
            loss.writes[memory.name] = None
            recorder.operations.append(loss)
            gradients.append(gradient)
        torch.autograd.backward(differentiated, gradients)
        for name, parameter in self.model.named_parameters():
            memory = None if parameter.grad is None else recorder.memory_of(parameter.grad)
            if memory is not None and memory.kind == "activation":
                memory.kind = "gradient"
                self._rename(memory, f"{name}.grad")

    def _rename(self, memory: Memory, name: str) -> None:
        """Give a gradient the name of its parameter, wherever a step uses it."""
        old, new = memory.name, self.recorder.unique(name)
        memory.names[-1] = new
        for operation in self.recorder.operations:
            for used in (operation.reads, operation.writes):
                if old in used:
                    del used[old]
                    used[new] = None

    def _begin(self, name: str) -> None:
        """Record the start of a call to a module."""
        self.recorder.enter(name)
        self.recorder.is_compiled |= name in self.compiled

    def _end(self, name: str) -> None:
        """Record the end of a call to a module."""
        self.recorder.leave()
        self.recorder.is_compiled &= name not in self.compiled

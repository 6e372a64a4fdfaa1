"""`trace`: the network of a model's training step or inference, from a run on meta tensors."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from mucudnn.errors import MucudnnError, UsageError
from mucudnn.plans.memory.parts import LEAST_BYTES
from mucudnn.plans.memory.traced import Trace
from mucudnn.problems.network import Network
from mucudnn.promises import STRICT
from mucudnn.torch.operators.passes import math_of
from mucudnn.torch.private import fake_mode, tree_map
from mucudnn.torch.tracing.compiled import compiled_parts, ignored_compiler
from mucudnn.torch.tracing.recorder import DATA_TYPES, Recorder
from mucudnn.torch.tracing.saved import tensors_in
from mucudnn.torch.tracing.traced_network import make_network, make_trace
from mucudnn.torch.tracing.traced_run import AutocastInsideError, TracedRun


def trace(model: nn.Module, example_input: Any) -> Network:
    """Return the network of a model's training step, or of its inference if no gradient is needed.

    The model runs once, forward and backward, on tensors without memory: no weight is copied, and no data is
    read. `example_input` is a tensor or a tuple of arguments, on any device, even "meta". Outputs are
    differentiated with respect to all parameters that need a gradient. The model itself does not change.

    Raises UsageError if the model cannot run on tensors without data, for example because it reads a value.
    """
    return trace_model(model, example_input).network


def fingerprint(model: nn.Module) -> str:
    """Return a hash of a model's structure, not of its values.

    It covers the types and modes of the modules, which of them torch.compile compiles, and the shapes and
    types of parameters and buffers.
    """
    lines = [f"{name} {type(module).__name__} {module.training}" for name, module in model.named_modules()]
    lines += [f"{name} is compiled" for name in compiled_parts(model)]
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        lines.append(f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def spell_inputs(example_input: Any) -> tuple[str, ...]:
    """Return the data type and the shape of each input: `f32[8,3,224,224]`."""
    return tuple(
        f"{DATA_TYPES.get(tensor.dtype, tensor.dtype)}[{','.join(map(str, tensor.shape))}]"
        for tensor in tensors_in(example_input)
    )


def trace_model(
    model: nn.Module, example_input: Any, least_bytes: int = LEAST_BYTES, *, strict: bool = False
) -> Trace:
    """Return the network with its saved tensors, and with `strict` arithmetic.

    Raises UsageError as `trace` does.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise UsageError(
                f"module {name!r} is compiled by torch.jit, which runs and saves tensors by itself and "
                "cannot be traced: use the module as it was before torch.jit"
            )
    # On a GPU fp32 convolutions follow PyTorch's flags. Calls find only a plan's kernels with their mode.
    is_on_gpu = any(parameter.is_cuda for parameter in model.parameters())
    math = STRICT if strict else math_of("f32") if is_on_gpu else "default"
    device, lower = _autocast_of()
    try:
        recorder = _run_without_data(model, example_input, math, device, lower)
    except AutocastInsideError as inside:
        recorder = _run_without_data(model, example_input, math, inside.device, None)
    network = make_network(recorder)
    inputs = spell_inputs(example_input)
    return make_trace(network, recorder, fingerprint(model), inputs, least_bytes)


def _run_without_data(
    model: nn.Module, example_input: Any, math: str, device: str, lower: torch.dtype | None
) -> Recorder:
    """Record a run of the model on tensors without data, under autocast to a type unless that is None.

    Raises AutocastInsideError for the device meta if the forward pass enables autocast itself.
    """
    recorder = Recorder(math)
    # Autocast does not support the device meta, so fake tensors replace it.
    fake = nullcontext() if device == "meta" else fake_mode()
    with errors_of_a_run_without_data(lambda: _running(model, recorder)), fake, ignored_compiler():
        twin = copy_without_memory(model, device)
        for module in twin.modules():
            # Such a norm would read the value of its count of batches. A constant saves the same tensors.
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None:
                module.momentum = 0.1
        inputs = tree_map(lambda value: _without_memory(value, device), example_input)
        TracedRun(recorder, twin, inputs, device, lower, compiled_parts(model)).run()
    return recorder


@contextmanager
def errors_of_a_run_without_data(running: Callable[[], str] = lambda: "the model") -> Iterator[None]:
    """Turn any error of a model that runs on tensors without data into a UsageError.

    `running` names what ran when the error occurred.
    """
    try:
        yield
    except MucudnnError:
        raise
    except Exception as error:  # the model's own code may raise any error
        text = " ".join(str(error).split())
        if "saved tensor hooks" in text:
            raise UsageError(
                f"{running()} uses a transform of torch.func, which runs without the hooks for saved tensors "
                "that memory plans need: plan the parts of the model around that, each for itself"
            ) from error
        raise UsageError(
            f"{running()} cannot be traced on tensors without data: {type(error).__name__}: {text}"
        ) from error


def _running(model: nn.Module, recorder: Recorder) -> str:
    """Return the name and the class of the innermost module that runs, for an error message."""
    return f"{recorder.place} ({type(model.get_submodule(recorder.module)).__name__})"


def _autocast_of() -> tuple[str, torch.dtype | None]:
    """Return the device for which autocast is enabled, a GPU first, and the type to which it casts.

    The device matters because autocast casts for other functions on a GPU than on the CPU. Return "meta" and
    None if autocast is disabled.
    """
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return device, torch.get_autocast_dtype(device)
    return "meta", None


def _without_memory(value: Any, device: str) -> Any:
    if not isinstance(value, Tensor):
        return value
    # The mode of fake tensors accepts no other tensors, so empty_like(value) would fail on its device.
    like = torch.empty_like(value, device="meta")
    empty = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype, device=device)
    return empty.requires_grad_(value.requires_grad)


def copy_without_memory(model: nn.Module, device: str = "meta") -> nn.Module:
    """Return a copy of a model, on a device, whose parameters and buffers have no data."""
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        empty = _without_memory(parameter.detach(), device)
        memo[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in model.buffers():
        memo[id(buffer)] = _without_memory(buffer, device)
    twin = copy.deepcopy(model, memo)
    for parameter in twin.parameters():
        parameter.grad = None
    return twin

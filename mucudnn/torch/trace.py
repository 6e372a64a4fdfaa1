"""`trace`: the network of a model's training step or inference, from a run on meta tensors."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from mucudnn.errors import MucudnnError, UsageError
from mucudnn.plans.memory_parts import LEAST_BYTES
from mucudnn.plans.traced import Saved, Trace
from mucudnn.problems import steps as nouns
from mucudnn.problems.network import Network
from mucudnn.torch.ops import math_of
from mucudnn.torch.recorder import DATA_TYPES, NO_NODE, Memory, Operation, Pack, Recorder

MOST_STEPS = 8  # one recomputation runs no more
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module with one tensor as input and one as result: their names, and its steps.

    A module that `is_once` gives another result, or does more than that, if it is called again.
    """

    module: str
    source: str
    source_geometry: tuple[Any, ...]
    result: str
    steps: range
    is_once: bool


def trace(model: nn.Module, example_input: Any) -> Network:
    """Return the network of a model's training step, or of its inference if no gradient is needed.

    The model runs once, forward and backward, on tensors without memory: no weight is copied, and no data is
    read. `example_input` is a tensor or a tuple of arguments, on any device, also "meta". Outputs are
    differentiated with respect to all parameters that need a gradient. The model itself stays as it is.

    Raises UsageError if the model cannot run on tensors without data, for example because it reads a value.
    """
    return trace_model(model, example_input).network


def fingerprint(model: nn.Module) -> str:
    """Return a text that is equal for models with equal modules and parameters, whatever their values."""
    lines = [f"{name} {type(module).__name__} {module.training}" for name, module in model.named_modules()]
    for name, one in (*model.named_parameters(), *model.named_buffers()):
        lines.append(f"{name} {tuple(one.shape)} {one.dtype} {one.requires_grad}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def spell_inputs(example_input: Any) -> tuple[str, ...]:
    """Return the data type and the shape of each input: `f32[8,3,224,224]`."""
    tensors = [leaf for leaf in tree_leaves(example_input) if isinstance(leaf, Tensor)]
    return tuple(
        f"{DATA_TYPES.get(one.dtype, one.dtype)}[{','.join(map(str, one.shape))}]" for one in tensors
    )


def trace_model(model: nn.Module, example_input: Any, least_bytes: int = LEAST_BYTES) -> Trace:
    """Return the network with its saved tensors. Raises UsageError as `trace` does."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model is a {type(model).__name__}, not a torch.nn.Module")
    recorder = Recorder(_math_of(model))
    device, lower = _autocast_of()
    # Autocast does not know the device meta, so fake tensors take its place.
    fake = nullcontext() if lower is None else FakeTensorMode(allow_non_fake_inputs=True)
    with errors_of_a_run_without_data(), fake:
        twin = copy_without_memory(model, device)
        inputs = tree_map(lambda value: _without_memory(value, device), example_input)
        run = _Run(recorder, twin, inputs, device, lower)
        run.run()
    network = _make_network(recorder)
    return _identify(network, recorder, run.calls, model, example_input, least_bytes)


@contextmanager
def errors_of_a_run_without_data() -> Iterator[None]:
    """Turn any error of a model that runs on tensors without data into a UsageError."""
    try:
        yield
    except MucudnnError:
        raise
    except Exception as error:  # the model's own code may raise any error
        text = " ".join(str(error).split())
        raise UsageError(
            f"the model cannot be traced on tensors without data: {type(error).__name__}: {text}"
        ) from error


def _math_of(model: nn.Module) -> str:
    """Return the math mode in fp32 of the model's convolutions: on a GPU, the one that PyTorch's flags allow.

    The kernels of a plan must have the same mode, or else no call finds them.
    """
    if not any(parameter.is_cuda for parameter in model.parameters()):
        return "default"
    try:
        return math_of("f32")
    except UsageError:  # with deterministic algorithms PyTorch's own convolutions run
        return "default"


def _autocast_of() -> tuple[str, torch.dtype | None]:
    """Return the device for which autocast is enabled, a GPU first, and the type to which it casts there.

    Autocast casts the arguments of other functions on a GPU than on the CPU. Return "meta" and None if it is
    disabled.
    """
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return device, torch.get_autocast_dtype(device)
    return "meta", None


def _without_memory(value: Any, device: str) -> Any:
    if not isinstance(value, Tensor):
        return value
    # A mode of fake tensors accepts no other tensors, so that empty_like would fail.
    like = torch.empty_like(value, device="meta")
    empty = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype, device=device)
    return empty.requires_grad_(value.requires_grad)


def copy_without_memory(model: nn.Module, device: str = "meta") -> nn.Module:
    """Return a copy of a model whose parameters and buffers are of these shapes, on a device without data."""
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


class _LikeCuda(TorchFunctionMode):
    """A mode in which dropout saves what it saves on a GPU: a mask of one byte an element."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function in (nn.functional.dropout, torch.dropout):
            x, p, training, in_place = _dropout_arguments(*args, **(kwargs or {}))
            if training and 0 < p < 1 and not in_place:
                return torch.native_dropout(x, p, True)[0]
        return function(*args, **(kwargs or {}))


def _dropout_arguments(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool | None = None
) -> tuple[Tensor, float, bool, bool]:
    return input, p, training if train is None else train, inplace


class _Run:
    """A run of a model under the recorder, and the calls of its modules."""

    def __init__(
        self, recorder: Recorder, model: nn.Module, inputs: Any, device: str, lower: torch.dtype | None
    ) -> None:
        self._device, self._lower = device, lower
        self.calls: list[ModuleCall] = []
        self.with_hooks = {name for name, one in model.named_modules() if any(map(_has_hooks, one.modules()))}
        self._recorder, self._model, self._inputs = recorder, model, inputs
        self._begun: list[tuple[int, str, tuple[Any, ...]]] = []

    def run(self) -> None:
        recorder, model = self._recorder, self._model
        for name, parameter in model.named_parameters():
            recorder.add_memory(parameter, name, "parameter" if parameter.requires_grad else "buffer")
        for name, buffer in model.named_buffers():
            recorder.add_memory(buffer, name, "buffer")
        given = [leaf for leaf in tree_leaves(self._inputs) if isinstance(leaf, Tensor)]
        for number, tensor in enumerate(given):
            recorder.add_memory(tensor, f"input{number}" if number else "input", "input")
        args = self._inputs if isinstance(self._inputs, tuple) else (self._inputs,)
        hooks = saved_tensors_hooks(recorder.pack, recorder.unpack)
        with ExitStack() as stack:
            stack.enter_context(_watched(model, self))
            stack.enter_context(hooks)
            stack.enter_context(recorder)
            kind = "cpu" if self._lower is None else self._device
            with _LikeCuda(), torch.autocast(kind, self._lower, enabled=self._lower is not None):
                outputs = [one for one in tree_leaves(model(*args)) if isinstance(one, Tensor)]
            torch.clear_autocast_cache()  # the end of the program's own autocast does so too
            self._differentiate(outputs)

    def _differentiate(self, outputs: list[Tensor]) -> None:
        recorder = self._recorder
        for output in outputs:
            memory = recorder.memory_of(output)
            if memory is not None and memory.kind == "activation":
                memory.kind = "output"
        differentiated = [output for output in outputs if output.requires_grad]
        if not differentiated:
            return
        recorder.end_forward()
        gradients = []
        for output in differentiated:
            memory = recorder.memory_of(output)
            assert memory is not None
            gradient = torch.empty_like(output)
            loss = Operation(recorder.unique("loss", "step"), "", 0, NO_NODE, True, {memory.name: None})
            recorder.add_memory(gradient, f"{memory.name}.grad", "activation")
            found = recorder.memory_of(gradient)
            assert found is not None
            loss.writes[found.name] = None
            recorder.operations.append(loss)
            gradients.append(gradient)
        torch.autograd.backward(differentiated, gradients)
        for name, parameter in self._model.named_parameters():
            memory = None if parameter.grad is None else recorder.memory_of(parameter.grad)
            if memory is not None and memory.kind == "activation":
                memory.kind = "gradient"
                self._rename(memory, f"{name}.grad")

    def _rename(self, memory: Memory, name: str) -> None:
        """Give a gradient the name of its parameter, wherever a step uses it."""
        old, new = memory.name, self._recorder.unique(name)
        memory.names[-1] = new
        for operation in self._recorder.operations:
            for used in (operation.reads, operation.writes):
                if old in used:
                    del used[old]
                    used[new] = None

    def begin(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._recorder.enter(name)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        memory = self._recorder.memory_of(tensors[0]) if len(tensors) == 1 else None
        source = memory.name if memory is not None and len(args) == 1 and not kwargs else ""
        geometry = _geometry(tensors[0]) if source else ()
        self._begun.append((len(self._recorder.operations), source, geometry))

    def end(self, name: str, module: nn.Module, result: Any) -> None:
        begin, source, geometry = self._begun.pop()
        self._recorder.leave()
        memory = self._recorder.memory_of(result) if isinstance(result, Tensor) else None
        if self._recorder.is_backward:  # a checkpoint computes its region again
            return
        if not source or memory is None or result.numel() * result.element_size() != memory.bytes:
            return
        steps = range(begin, len(self._recorder.operations))
        is_random = any(one.is_random for one in self._recorder.operations[begin:])
        is_once = is_random or any(_runs_once(one) for one in module.modules()) or name in self.with_hooks
        self.calls.append(ModuleCall(name, source, geometry, memory.name, steps, is_once))


def _runs_once(module: nn.Module) -> bool:
    return isinstance(module, _RANDOM) and module.training


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


@contextmanager
def _watched(model: nn.Module, run: _Run) -> Iterator[None]:
    """Tell the run when each module begins and ends."""
    for name, module in model.named_modules():
        module.register_forward_pre_hook(
            lambda _, args, kwargs, name=name: run.begin(name, args, kwargs), with_kwargs=True, prepend=True
        )
        module.register_forward_hook(lambda one, _, result, name=name: run.end(name, one, result))
    yield


def _geometry(tensor: Tensor) -> tuple[Any, ...]:
    return (tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())


def _make_network(recorder: Recorder) -> Network:
    """Return the network of what was recorded."""
    tensors = []
    for memory in recorder.memories:
        for number, name in enumerate(memory.names):
            before = memory.names[number - 1] if number else ""
            kind = memory.kind if number == len(memory.names) - 1 else "activation"
            tensors.append(nouns.Tensor(name, memory.shape, memory.data_type, kind, before))
    _note_saves(recorder)
    names = {one.node: one.name for one in reversed(recorder.operations) if not one.is_backward}
    differentiated: set[str] = set()
    steps = []
    for one in recorder.operations:
        backward_of = names.get(one.node, "") if one.is_backward else ""
        if backward_of in differentiated:
            backward_of = ""
        differentiated.add(backward_of)
        reads = tuple(name for name in one.reads if name not in one.writes)
        saves, kernels = tuple(one.saves), tuple(one.kernels)
        steps.append(nouns.Step(one.name, reads, tuple(one.writes), saves, kernels, one.flops, backward_of))
    is_training = any(one.is_backward for one in recorder.operations)
    written = {name for step in steps for name in step.writes}
    used = written | {name for step in steps for name in step.reads}
    kept = [one for one in tensors if one.name in used or one.kind in nouns.PRESENT]
    if not is_training:
        steps = [nouns.Step(s.name, s.reads, s.writes, (), s.kernels, s.flops) for s in steps]
    return Network(tuple(kept), tuple(steps))


def _note_saves(recorder: Recorder) -> None:
    """Note in each step what it saves, if its own backward step reads that again."""
    needed = {recorder.packs[pack].node for pack, _ in recorder.unpacked}
    first: dict[int, Operation] = {}
    for one in recorder.operations:
        if not one.is_backward:
            first.setdefault(one.node, one)
    for number, pack in enumerate(recorder.packs):
        operation = first.get(pack.node)
        if operation is None or pack.node not in needed or pack.memory.name != pack.name:
            continue
        backward = {step for other, step in recorder.unpacked if other == number}
        is_read_again = any(recorder.operations[step].node == pack.node for step in backward)
        if is_read_again and (pack.name in operation.reads or pack.name in operation.writes):
            operation.saves[pack.name] = None


def _identify(
    network: Network,
    recorder: Recorder,
    calls: list[ModuleCall],
    model: nn.Module,
    example_input: Any,
    least_bytes: int,
) -> Trace:
    """Return the trace: the managed storages in the order of their first packs."""
    managed: dict[int, list[tuple[int, Pack]]] = {}
    packed_at: list[int] = []
    unpacked_at: dict[int, int] = {}
    unpacked: dict[int, int] = {}
    for number, step in recorder.unpacked:
        unpacked.setdefault(number, step)
    managed_number: dict[int, int] = {}
    steps = len(network.steps)
    for number, pack in enumerate(recorder.packs):
        if pack.memory.kind in nouns.PRESENT or pack.memory.bytes < least_bytes:
            continue
        managed.setdefault(id(pack.memory), []).append((len(packed_at), pack))
        managed_number[number] = len(packed_at)
        packed_at.append(min(_step_after(pack, recorder), steps - 1))
    for number, step in unpacked.items():
        if number in managed_number:
            unpacked_at[managed_number[number]] = step
    first_packs = {packs[0][1].name: packs[0][1] for packs in managed.values()}
    inputs = [one.name for one in network.tensors if one.kind == "input"]
    orders = {name: order for order, name in enumerate(first_packs)}
    convolutions = {step.name for step in network.steps if step.kernels}
    saved = []
    for order, packs in enumerate(managed.values()):
        _, first = packs[0]
        one = Saved(first.memory.name, order, first.module, tuple(number for number, _ in packs))
        by_modules = _with_replay(one, calls, first_packs, inputs, network)
        if by_modules.modules and convolutions.isdisjoint(by_modules.replayed):
            saved.append(by_modules)
            continue
        # Single operations may do without the convolutions of a whole block.
        by_operations = _with_operations(one, network, orders, recorder)
        saved.append(by_operations if by_operations.replayed else by_modules)
    return Trace(
        network,
        tuple(saved),
        tuple(packed_at),
        unpacked_at,
        {one.name: (one.module, one.call) for one in recorder.operations},
        spell_inputs(example_input),
        fingerprint(model),
        least_bytes,
        {one.name: one.held for one in recorder.memories if one.held >= 0},
    )


def _step_after(pack: Pack, recorder: Recorder) -> int:
    """Return the first step that begins after a pack.

    A convolution of mucudnn saves its input once it has run.
    """
    saving = recorder.operations[pack.step] if pack.step < len(recorder.operations) else None
    is_convolution = saving is not None and bool(saving.kernels) and saving.node == pack.node
    return pack.step + is_convolution


def _with_operations(saved: Saved, network: Network, orders: Mapping[str, int], recorder: Recorder) -> Saved:
    """Return the tensor with the steps that compute it again, if some do that no module contains alone.

    They are few, run no convolution, and use no random numbers. They read inputs, parameters, and tensors
    that were saved before this one, which are its sources.
    """
    found = network.recomputation(saved.name)
    at = {one.name: one for one in recorder.operations}
    if len(found.steps) > MOST_STEPS or any(at[s.name].is_random or s.kernels for s in found.steps):
        return saved
    sources = []
    for one in found.sources:
        if one.kind == "activation" and one.name in orders:
            sources.append(one.name)
        elif one.kind not in ("input", "parameter", "buffer"):
            return saved
    if any(orders[name] >= saved.order for name in sources):
        return saved
    return replace(saved, sources=tuple(sources), replayed=tuple(step.name for step in found.steps))


def _with_replay(
    saved: Saved, calls: list[ModuleCall], first: dict[str, Pack], inputs: list[str], network: Network
) -> Saved:
    """Return the tensor with the modules that compute it again, if a chain of modules can.

    The chain begins at a saved tensor, or at an input, that the modules read as it was saved.
    """
    made = {call.result: call for call in reversed(calls)}  # the innermost of several calls
    chain: list[ModuleCall] = []
    wanted = saved.name
    for _ in range(4):
        call = made.get(wanted)
        if call is None or call.is_once or call.source == call.result:
            return saved
        chain.insert(0, call)
        wanted = call.source
        source = first.get(wanted)
        if source is not None and source.geometry == call.source_geometry:
            break
        if wanted in inputs:
            break
    else:
        return saved
    steps = [network.steps[number].name for call in chain for number in call.steps]
    if not steps:
        return saved
    return Saved(
        saved.name, saved.order, saved.module, saved.packs, tuple(call.module for call in chain),
        wanted, inputs.index(wanted) if wanted in inputs else None, tuple(steps),
    )  # fmt: skip

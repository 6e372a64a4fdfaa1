"""`will_it_fit` and `largest_batch`: the memory of a training step or an inference that does not run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count
from typing import Any, TypeAlias
from weakref import WeakSet, finalize

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from mucudnn.arrays.call import bytes_of
from mucudnn.errors import UsageError, shown
from mucudnn.measuring.modelled_device import find_device
from mucudnn.plans.memory.allocations import Update
from mucudnn.plans.memory.allocator import FREE, Event
from mucudnn.plans.memory.batches import PROBES, extrapolate, largest, search
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.fit import OPTIMIZERS, Fit, Surroundings, fit_network, name_optimizer
from mucudnn.plans.memory.parts import LEAST_BYTES
from mucudnn.plans.memory.traced import Trace
from mucudnn.problems import steps as nouns
from mucudnn.problems.network import Network
from mucudnn.sizes import format_size
from mucudnn.torch.tracing.recorder import DATA_TYPES
from mucudnn.torch.tracing.trace import trace_model

Optimizer: TypeAlias = torch.optim.Optimizer | str | None
# The functions whose arguments autocast casts to float32 on a GPU. On the CPU it casts those of few losses.
_IN_FLOAT32 = {
    "__pow__", "acos", "asin", "binary_cross_entropy_with_logits", "cdist", "cosh",
    "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "cumprod", "cumsum", "dist",
    "erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss", "kl_div", "l1_loss", "layer_norm",
    "log", "log10", "log1p", "log2", "log_softmax", "logsumexp", "margin_ranking_loss", "mse_loss",
    "multi_margin_loss", "multilabel_margin_loss", "nll_loss", "norm", "pdist", "poisson_nll_loss",
    "pow", "prod", "reciprocal", "renorm", "rms_norm", "rsqrt", "sinh", "smooth_l1_loss",
    "soft_margin_loss", "softmax", "softmin", "softplus", "sum", "tan", "triplet_margin_loss",
}  # fmt: skip
_ONE_BY_ONE = (torch.optim.Adafactor,)  # optimizers that by default update one parameter after the other
_DEVICE = "h200"


def will_it_fit(
    model: nn.Module,
    example_input: Any,
    *,
    memory: int | str | None = None,
    device: str | None = None,
    optimizer: Optimizer = None,
    autocast: torch.dtype | None = None,
    accumulate: bool = False,
    training: bool = True,
) -> Fit:
    """Return the memory that a training step of the model takes, without a plan and with the least plan.

    Nothing runs: the model and the input may be on any device, also on "meta". Counted are parameters,
    gradients, the optimizer's state and what its step takes, the input, activations, workspaces of the
    fastest undivided algorithms, the rounding and the fragmentation of PyTorch's allocator, the buckets of
    DistributedDataParallel, and what CUDA takes for itself: a constant of the device, or on a present GPU
    what is taken now, if that is more. Recurrent layers count in their plain form, which takes more than
    fused kernels do.

    Args:
        model: a model in training mode, also in DistributedDataParallel.
        example_input: a tensor or a tuple of arguments.
        memory: bytes of the device, or text such as "24GiB"; by default those of `device`, or of the present
            GPU.
        device: a modelled device, such as "h100"; its speed decides which algorithm needs a workspace.
        optimizer: an optimizer of torch.optim, or "sgd", "momentum", "adam", "adamw", "adafactor", "adam8bit"
            or "adamw8bit".
        autocast: the type of torch.autocast around the forward pass, which casts as on a GPU.
        accumulate: True if the gradients of earlier steps are in memory when the step begins.
        training: False for an inference under torch.no_grad, in the mode in which the model is. The least
            then divides its convolutions.

    Returns:
        An object with `fits` and `fits_with_plan`, and with `peak`, `floor`, `reserved` and `parts` in bytes.

    Raises:
        UsageError: the model cannot be traced, there is no such device or optimizer, the optimizer is LBFGS,
            whose state depends on its history, or there is an optimizer or `accumulate` without `training`.
    """
    trace, fit = _prepare(model, memory, device, optimizer, autocast, accumulate, training)
    traced = trace(example_input)
    return fit(traced, traced.network, list(traced.saved))


def largest_batch(
    model: nn.Module,
    example_input: Any,
    *,
    memory: int | str | None = None,
    device: str | None = None,
    optimizer: Optimizer = None,
    autocast: torch.dtype | None = None,
    accumulate: bool = False,
    training: bool = True,
    plan: bool = True,
) -> int:
    """Return the largest batch with which a training step fits, or 0 if a single sample does not.

    The first axis of each tensor in `example_input` is the batch. With `plan` a memory plan may offload,
    recompute and divide; without it the step runs as it is. The other arguments and the errors are those of
    `will_it_fit`.
    """
    limit = _memory_of(memory, device)
    if limit is None:
        raise UsageError("there is no GPU whose memory could limit the batch: give memory= or device=")
    trace, fit = _prepare(model, memory, device, optimizer, autocast, accumulate, training)

    def of_batch(size: int) -> Any:
        def resize(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            return torch.empty((size, *value.shape[1:]), dtype=value.dtype, device="meta")

        return tree_map(resize, example_input)

    def need(trace: Trace, network: Network) -> int:
        sizes = {tensor.name: tensor.bytes for tensor in network.tensors}
        found = fit(trace, network, [name for name in trace.saved if sizes[name] >= LEAST_BYTES])
        return found.floor if plan else found.peak

    def need_of_batch(size: int) -> int:
        traced = trace(of_batch(size))
        return need(traced, traced.network)

    near, far = (trace(of_batch(size), 0) for size in PROBES)
    at = extrapolate(near.network, far.network)
    # Without `at` the steps of the model depend on the batch.
    guess = largest(need_of_batch if at is None else lambda size: need(near, at(size)), limit)
    if guess and at is not None and trace(of_batch(guess), 0).network == at(guess):
        return guess
    return search(lambda size: need_of_batch(size) <= limit, guess)


def _prepare(
    model: nn.Module,
    memory: int | str | None,
    device: str | None,
    optimizer: Optimizer,
    autocast: torch.dtype | None,
    accumulate: bool,
    training: bool,
) -> tuple[Callable[..., Trace], Callable[[Trace, Network, list[str]], Fit]]:
    """Return functions that trace the model, and that count the memory of a network with managed tensors."""
    if not training and (optimizer is not None or accumulate):
        raise UsageError("an optimizer and accumulated gradients are of a training step: leave them out")
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    buckets = 0
    if isinstance(model, DistributedDataParallel):
        if not model.gradient_as_bucket_view:  # the buckets are copies of the gradients
            buckets = sum(int(p.nbytes) for p in model.parameters() if p.requires_grad)
        model = model.module
    modelled = find_device(device or _DEVICE)
    beside = Surroundings(_update_of(model, optimizer), _context_of(memory, device), buckets, accumulate)
    limit = _memory_of(memory, device)

    def trace(example_input: Any, least_bytes: int = LEAST_BYTES) -> Trace:
        with ExitStack() as around:
            around.enter_context(torch.set_grad_enabled(training))
            if autocast is not None:
                around.enter_context(torch.autocast(kind, autocast))
                if kind == "cpu":
                    around.enter_context(CastsOfGpu())
            return trace_model(model, example_input, least_bytes)

    def fit(trace: Trace, network: Network, tensors: list[str]) -> Fit:
        costs = model_costs(network, modelled, divide=False)
        return fit_network(
            network, costs, memory=limit, surroundings=beside, held=trace.held, tensors=tensors
        )

    return trace, fit


def _memory_of(memory: int | str | None, device: str | None) -> int | None:
    if memory is not None:
        return bytes_of("memory", memory)
    if device is not None:
        return find_device(device).memory
    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def _context_of(memory: int | str | None, device: str | None) -> int:
    """Return the bytes that CUDA takes, or that it and other programs take now on the present GPU."""
    context = find_device(device or _DEVICE).context
    if memory is not None or device is not None or not torch.cuda.is_available():
        return context
    free, total = torch.cuda.mem_get_info()
    return max(context, int(total - free - torch.cuda.memory_reserved()))


def _update_of(model: nn.Module, optimizer: Optimizer) -> Update:
    """Return what an optimizer allocates and frees, found in two steps on tensors without data."""
    if optimizer is None:
        return Update()
    if isinstance(optimizer, torch.optim.LBFGS):
        group = optimizer.param_groups[0]
        trained = sum(int(parameter.nbytes) for parameter in group["params"] if parameter.requires_grad)
        state = format_size(2 * group["history_size"] * trained)
        raise UsageError(
            f"the state of LBFGS depends on its history, which grows to {state} beside its scratch memory: "
            "leave out optimizer= and subtract that from memory="
        )
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            names = ", ".join(OPTIMIZERS)
            raise UsageError(f"optimizer is {shown(optimizer)}: there are {names}, and those of torch.optim")
        trainable = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        return name_optimizer(
            optimizer, [nouns.Tensor(n, p.shape, DATA_TYPES[p.dtype]) for n, p in trainable]
        )
    steps: tuple[list[Event], list[Event]] = [], []
    keys = count()
    for group in optimizer.param_groups:
        own = {**group, "params": list(map(_without_data, group["params"]))}
        twin = type(optimizer)([own])
        for each in twin.param_groups:
            if each.get("foreach") is None and not each.get("fused") and not isinstance(twin, _ONE_BY_ONE):
                each["foreach"] = True  # the default on a GPU
        memory = _Allocations(keys)
        for events in steps:
            earlier = len(memory.events)
            with suppress(RuntimeError), memory:  # a step may depend on data, but makes its state before
                twin.step()
            events += memory.events[earlier:]
    return Update(*map(tuple, steps))


class CastsOfGpu(TorchFunctionMode):
    """A mode in which autocast on the CPU casts to float32 what autocast on a GPU does.

    Without it the results of norms and softmax would count half of their bytes. Functions that others in
    Python call, such as the softmax in nn.MultiheadAttention, are not seen.
    """

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        def cast(value: Any) -> Any:
            is_lower = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
            return value.float() if is_lower else value

        args = args, kwargs or {}
        if getattr(function, "__name__", "") in _IN_FLOAT32 and torch.is_autocast_enabled("cpu"):
            args = tree_map(cast, args)
        return function(*args[0], **args[1])


class _Allocations(TorchDispatchMode):
    """The tensors without data that are made meanwhile, and those of them that are freed, in order.

    The program that runs reads 1 where it reads the value of such a tensor.
    """

    def __init__(self, keys: Iterator[int]) -> None:
        super().__init__()
        self.events: list[Event] = []
        self._keys = keys
        self._known = WeakSet[torch.UntypedStorage]()

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._known.add(tensor.untyped_storage())
        if function is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 1
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.is_meta and tensor.untyped_storage() not in self._known:
                storage, key = tensor.untyped_storage(), next(self._keys)
                self._known.add(storage)
                self.events.append((key, storage.nbytes()))
                finalize(storage, self.events.append, (key, FREE))
        return result


def _without_data(parameter: Tensor) -> Tensor:
    twin = nn.Parameter(torch.empty_like(parameter, device="meta"))
    twin.grad = torch.empty_like(twin)
    return twin

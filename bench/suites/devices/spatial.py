"""Models that people run, divided over ranks: whether they are right, and what video decoders cost.

`models.toml` lists the models, which are small and have random weights. A model is right if its result and
its gradients differ from the undivided model's by at most 1e-11 in fp64. Each model is also split, planned
and converted (`operations`).

The timed models are decoders. They run converted and in fp32, on one rank alone and on all ranks together,
alternately, so that other programs on the machine disturb both alike.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import time
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

import mucudnn.torch
from bench.lib.ranks import launch
from bench.lib.record import Record
from bench.lib.vision import import_torchvision
from bench.suites.devices.operations import failure, try_operations
from bench.suites.devices.table import OPERATIONS
from mucudnn.torch import spatial

RIGHT = 1e-11
TIMEOUT = 300  # seconds a model
RANKS, TIMED_RANKS, ROUNDS, LIMIT = 2, 4, 5, "64MiB"
SETTLING = 7  # rounds in which models measure kernels and compare whole steps with PyTorch's
TIME, MEMORY = "decoder: seconds / one process", "decoder: bytes / one process"
# Options that TOML cannot express, because it has no null.
NULLS = {"segmentation_models_pytorch": {"encoder_weights": None}}


@dataclass(frozen=True)
class Model:
    """A model of a package: how to make it and to call it, the shape of its input, and the axis to divide."""

    package: str
    name: str  # the class or function, below the package
    shape: list[int]
    axis: int = 2  # 0: the model is not divided
    args: Sequence[Any] = ()
    options: dict[str, Any] = field(default_factory=dict)
    part: str = ""  # the part of the module that runs; "" for all of it
    call: str = "forward"
    arguments: dict[str, Any] = field(default_factory=dict)  # more arguments of the call
    input: str = ""  # the argument of the call that takes the input; "" for the first
    in_list: bool = False  # True if that argument is a list of tensors
    tensors: dict[str, list[int]] = field(default_factory=dict)  # shapes of random ones, for one sample
    indices: dict[str, list[int]] = field(default_factory=dict)  # arguments of integers, for one sample
    timed: bool = False

    def make(self) -> tuple[nn.Module, Tensor]:
        """Return the model in fp64 for inference, and an input. Raise ImportError without its package."""
        with suppress(ImportError):  # only some packages need it
            import_torchvision()
        make: Any = getattr(import_module(self.package), self.name)
        torch.manual_seed(1)
        options = self.options | NULLS.get(self.package, {})
        # A model of transformers takes one configuration object instead of named options.
        made = (
            make(make.config_class(**options))
            if hasattr(make, "config_class")
            else make(*self.args, **options)
        )
        module = _Called(getattr(made, self.part) if self.part else made, self).double().eval()
        for parameter in module.parameters():  # many modules begin with zeros, which hide errors
            if not parameter.abs().max():
                nn.init.normal_(parameter, std=0.05)
        return module, torch.randn(self.shape, dtype=torch.float64)


class _Called(nn.Module):
    """A module that maps one tensor to one tensor by a method of another module."""

    def __init__(self, module: nn.Module, entry: Model) -> None:
        super().__init__()
        self.module, self.entry = module, entry
        generator = torch.Generator().manual_seed(3)
        for name, shape in entry.tensors.items():
            self.register_buffer(name, torch.randn(shape, dtype=torch.float64, generator=generator))
        for name, indices in entry.indices.items():
            self.register_buffer(name, torch.tensor(indices))

    def forward(self, x: Any) -> Any:
        """Return the first tensor of the result."""
        entry = self.entry
        named = {name: b.expand(x.shape[0], *b.shape[1:]) for name, b in self.named_buffers(recurse=False)}
        value = [x] if entry.in_list else x
        if entry.input:
            named[entry.input] = value
        call = self.module if entry.call == "forward" else getattr(self.module, entry.call)
        return _first_tensor(call(*([] if entry.input else [value]), **entry.arguments, **named))


def _first_tensor(y: Any) -> Any:
    """Return the tensor of a result that may be an output object, a dict or a list."""
    if hasattr(y, "latent_dist"):
        return y.latent_dist.mean
    if hasattr(y, "mid_block_res_sample"):
        return y.mid_block_res_sample
    if isinstance(y, dict):
        return _first_tensor(next(iter(y.values())))
    return _first_tensor(y[0]) if isinstance(y, list | tuple) else y


MODELS = {
    name: Model(**entry)
    for name, entry in tomllib.loads(Path(__file__).with_name("models.toml").read_text("utf-8")).items()
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses models by words in their names."""
    parser.add_argument("--models", nargs="+", metavar="WORD", help="models with a word in their name")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the outcome of each chosen model, and the times of the chosen video decoders."""
    for name, model in MODELS.items():
        if options.models and not any(word.lower() in name.lower() for word in options.models):
            continue
        if model.timed:
            yield from _time(name)
            continue
        details = survey(name)
        yield Record("survey", name, "divided share of convolutions", details.get("share"), "", details)


def survey(name: str) -> dict[str, Any]:
    """Return the outcomes of a model's operations. A rank that does not divide it right counts for all."""
    model = MODELS[name]
    try:
        [operations] = launch(1, try_operations, model.make, timeout=TIMEOUT)
        outcomes = launch(RANKS, compare_models, [name], timeout=TIMEOUT) if model.axis else []
    except RuntimeError as error:
        return dict.fromkeys(OPERATIONS, failure(error))
    each = (own[name] for own in outcomes)
    return {**operations, **max(each, key=lambda own: own["divide"] != "right", default={})}


def compare_models(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the outcome of each model on this rank."""
    mesh = spatial.init_mesh("cpu", part=dist.get_world_size(), timeout=120)
    return {name: compare_model(MODELS[name], mesh) for name in names}


def compare_model(entry: Model, mesh: Any) -> dict[str, Any]:
    """Return the outcome of a model, its errors, its shares of divided work and its gatherings."""
    started = time.monotonic()
    try:
        model, x = entry.make()
    except ImportError as error:
        return {"divide": failure(error)}
    expected = copy.deepcopy(model)
    whole, mine = x.clone().requires_grad_(), x.clone().requires_grad_()
    with Precise():
        due = expected(whole)
        weights = due.detach().sin() + 0.1
        (due * weights).sum().backward()
    with warnings.catch_warnings(), spatial.report(model) as layers, Precise():
        warnings.simplefilter("ignore")
        try:
            y = model(spatial.divide(mine, mesh, {entry.axis: "part"}))
            y = y.gather() if isinstance(y, spatial.Divided) else y
            (y * weights).sum().backward()
        except Exception as error:
            return {"divide": failure(error)}
    errors = _relative(y, due), max(_relative(mine.grad, whole.grad), _gradients(model, expected))
    return {
        "divide": "right" if max(errors) <= RIGHT else "wrong",
        "errors": errors,
        "share": layers.divided_share("Conv"),
        "gathered": {f"{event.layer}, {event.function}": event.size for event in layers.gatherings},
        "seconds": time.monotonic() - started,
    }


class Precise(TorchFunctionMode):
    """A mode in which models that convert tensors to fp32 meanwhile leave them in fp64."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch without a conversion to fp32."""
        kwargs = kwargs or {}
        if function is torch.Tensor.float and args[0].dtype == torch.float64:
            return args[0]
        if function is torch.Tensor.to and args[0].dtype == torch.float64:
            args = tuple(map(_in_fp64, args))
            kwargs = {key: _in_fp64(value) for key, value in kwargs.items()}
        return function(*args, **kwargs)


def _in_fp64(value: Any) -> Any:
    is_fp32 = isinstance(value, torch.dtype) and value == torch.float32
    return torch.float64 if is_fp32 else value


def _relative(a: Any, b: Any) -> float:
    if a is None or b is None:
        return 0.0 if a is b else float("inf")
    return float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1e-3))


def _gradients(model: nn.Module, expected: nn.Module) -> float:
    """Return the largest error of the parameters' gradients, whose mean over the ranks counts."""
    scale = max(float(q.grad.abs().max()) for q in expected.parameters() if q.grad is not None)
    worst = 0.0
    for p, q in zip(model.parameters(), expected.parameters(), strict=True):
        grad, due = (torch.zeros_like(own) if own.grad is None else own.grad for own in (p, q))
        dist.all_reduce(grad)
        worst = max(worst, float((grad / dist.get_world_size() - due).abs().max()) / scale)
    return worst


def _time(name: str) -> Iterator[Record]:
    """Yield the processor time and the memory of a decoder on several ranks, over those of one process."""
    case = f"{name}, {TIMED_RANKS} ranks"
    try:
        with TemporaryDirectory() as folder:  # choices of other versions must not count
            os.environ["MUCUDNN_CACHE"] = str(Path(folder) / "cache.sqlite")
            ranks = launch(TIMED_RANKS, decode, name)
    except RuntimeError as error:
        yield Record("spatial", case, TIME, None, "", {"why": str(error)})
        return
    alone, whole = ranks[0]["alone"], ranks[0]["whole_bytes"]
    together = [sum(each) for each in zip(*(rank["together"] for rank in ranks), strict=True)]
    ratios = [many / one for many, one in zip(together, alone, strict=True)]
    details = {"seconds": together, "of_one_process": alone}
    yield Record("spatial", case, TIME, statistics.median(ratios[SETTLING:]), "", details)
    part = max(rank["part_bytes"] for rank in ranks)
    yield Record("spatial", case, MEMORY, part / whole, "", {"bytes": part, "of_one_process": whole})


def decode(name: str) -> dict[str, Any]:
    """Decode alone, on the first rank, and together; return seconds of each round, and the peaks of bytes."""
    warnings.simplefilter("ignore")
    entry, is_first = MODELS[name], dist.get_rank() == 0
    mesh = spatial.init_mesh("cpu", timeout=300, part=dist.get_world_size())
    patient = dist.new_group(timeout=timedelta(seconds=300))
    # Not one model for both, because a converted model's choices depend on the steps that it has run.
    (alone, z), (together, _) = ((model.float(), x.float()) for model, x in (entry.make(), entry.make()))
    for model in (alone, together):
        mucudnn.torch.convert(model, workspace=LIMIT, budget="none")
    x = spatial.divide(z, mesh, {entry.axis: "part"})

    def seconds(model: nn.Module, latents: Any) -> float:
        dist.barrier(patient)
        before = time.process_time()
        model(latents)
        return time.process_time() - before

    costs: dict[str, Any] = {"alone": [], "together": []}
    with torch.no_grad():
        for _ in range(SETTLING + ROUNDS):
            if is_first:
                costs["alone"].append(seconds(alone, z))
            else:
                dist.barrier(patient)
            costs["together"].append(seconds(together, x))
        if is_first:
            costs["whole_bytes"] = peak_bytes(alone, z)
        dist.barrier(patient)
        costs["part_bytes"] = peak_bytes(together, x)
    return costs


def peak_bytes(model: nn.Module, x: Any) -> int:
    """Return the most bytes that PyTorch's allocator for the CPU holds during a run, without earlier ones."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        model(x)
    held = peak = 0
    profiler: Any = recorded.profiler
    events = profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak

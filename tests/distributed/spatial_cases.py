"""Cases that every rank of a world runs: data parallelism, memory, numerics, plans, examples."""

from __future__ import annotations

import copy
import importlib
import os
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from spatial_layers import divide, largest, mean_of_gradients, row
from spatial_models import Skipping, compare, make, models, peak_of, volume, whole_of
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import mucudnn.torch
from mucudnn.torch import spatial
from mucudnn.torch.parallel.spatial import divided
from mucudnn.torch.parallel.spatial.border import redivide
from mucudnn.torch.parallel.spatial.divided import Divided
from mucudnn.torch.parallel.spatial.functions import elementwise


def data_parallel(kind: str, statistics: str, whole: bool) -> float:
    """Return the largest error of the gradients of one step on a 2 × 2 mesh."""
    mesh = spatial.init_mesh("cpu", data=2, depth=2)
    model, x = make(whole=whole)
    expected, place = copy.deepcopy(model), mesh.get_local_rank("data")
    if statistics == "all":
        expected(x).square().mean().backward()
    else:  # each half of the samples has its own statistics
        for half in x.chunk(2):
            (expected(half).square().mean() / 2).backward()
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for part in (model.first, model.second, model):
            fully_shard(part, mesh=spatial.init_mesh("cpu", world=4))
    mine = spatial.divide(x.chunk(2)[place], mesh, {2: "depth"}, statistics=statistics)
    model(mine).square().mean().backward()
    if kind == "none":
        mean_of_gradients(model)
    module = model.module if kind == "ddp" else model
    worst = 0.0
    for p, q in zip(module.parameters(), expected.parameters(), strict=True):
        grad = p.grad.full_tensor() if kind == "fsdp" else p.grad
        worst = max(worst, largest(grad, q.grad))
    return worst


def converted() -> tuple[float, float, int]:
    """Return the errors of a converted model's gradients and result in fp32, and its number of kernels."""
    from mucudnn.arrays import dispatch

    torch.manual_seed(1)
    model, x = (
        nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv3d(4, 4, 3)),
        torch.randn(1, 2, 8, 6, 6),
    )
    exact, stock = copy.deepcopy(model).double(), copy.deepcopy(model)
    y64 = exact(x.double())
    stock(x).sum().backward()
    y64.sum().backward()
    mucudnn.torch.convert(model, workspace="1MiB")
    y = model(divide(x))
    y.sum().backward()
    mean_of_gradients(model)
    pairs = zip(model.parameters(), stock.parameters(), exact.parameters(), strict=True)
    grads = [(largest(p.grad.double(), r.grad), largest(q.grad.double(), r.grad)) for p, q, r in pairs]
    return max(g[0] for g in grads), largest(y.gather().double(), y64), len(dispatch._prepared)


def same_numerics() -> torch.Tensor:
    """Return the result of a model with pinned algorithms, whole on each rank."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv3d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv3d(5, 7, 3, stride=2), nn.MaxPool3d(2)
    )
    x = torch.randn(2, 3, 13, 9, 11)
    with torch.no_grad():
        return model(divide(x, numerics="same")).gather()


def bitwise() -> list[str]:
    """Return the operators whose fp32 results differ in any bit from the undivided results."""
    torch.manual_seed(1)
    x = torch.randn(2, 3, 11, 7, 9)
    functions: dict[str, Callable[[Any], Any]] = {
        "max pooling": lambda x: nn.functional.max_pool3d(x, 3, 2, 1),
        "nearest": lambda x: nn.functional.interpolate(x, scale_factor=1.7),
        "nearest-exact": lambda x: nn.functional.interpolate(x, size=(17, 5, 9), mode="nearest-exact"),
        "elements": lambda x: (x.relu() + 1) * x.abs() - x / 3,
        "slices": lambda x: x[:, 1:, 1::2, :-1],
        "pads": lambda x: nn.functional.pad(x, (1, 2, 0, 1, 3, 2), mode="reflect"),
    }  # fmt: skip
    wrong = []
    for name, function in functions.items():
        y = function(divide(x))
        if not torch.equal(y.gather(), function(x)):
            wrong.append(name)
    return wrong


def elements() -> tuple[list[str], int]:
    """Return the functions whose result differs from that on whole tensors, and the number of calls."""
    torch.manual_seed(1)
    a, b, c = torch.rand(3, 2, 4, 7, 6).unbind()
    division = divide(a).division
    operands: list[tuple[Any, ...]] = [
        (a,), (a, b), (a, b, c), (a, 0.25), (a, 0.25, 0.75), (a > 0.5,),
        (a > 0.5, b > 0.5),
        (a > 0.5, b, c), (a, b > 0.5, 0.5), (a, b[:, :1]), (a, b[:1, :, :1]),
        (a[:1, :1], b), (a[:, :, :1], b), (b[:, :, :1], a.double()),
    ]  # fmt: skip
    wrong, calls = [], 0
    handlers = (elementwise.run_on_elements, elementwise._converted)
    for function in [key for key, handler in divided._table.items() if handler in handlers]:
        for arguments in operands:
            whole = [x.clone() if isinstance(x, torch.Tensor) else x for x in arguments]
            mine = [
                redivide(x, division) if isinstance(x, torch.Tensor) and x.size(2) > 1 else x
                for x in arguments
            ]
            try:
                expected = function(*whole)
            except Exception:  # another number or type of arguments
                continue
            if not isinstance(expected, torch.Tensor):
                continue
            calls += 1
            shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in arguments]
            try:
                result = Divided.__torch_function__(function, (), tuple(mine))
                if isinstance(result, Divided):
                    assert result.shape == expected.shape
                    result, expected = result.local, redivide(expected, division).local
                torch.testing.assert_close(result, expected, rtol=1e-6, atol=0, equal_nan=True)
            except Exception as error:
                wrong.append(f"{function} of {shapes}: {error}")
    return wrong, calls


def dropout() -> tuple[bool, bool, float]:
    """Return whether ranks drop the same channels and different elements, and the share that is kept."""
    torch.manual_seed(dist.get_rank())  # programs may seed ranks differently
    ones = divide(torch.ones(8, 16, 4, 5, 5))
    channels = nn.functional.dropout3d(ones, 0.5).gather()
    elements = nn.functional.dropout(ones, 0.5).gather()
    first = channels[:, :, :1, :1, :1]
    return (
        torch.equal(channels, first.expand_as(channels)),
        not torch.equal(elements[:, :, :2], elements[:, :, 2:]),
        (elements > 0).double().mean().item(),
    )


def checkpointed() -> float:
    """Return the largest difference between gradients with and without checkpointing."""
    model, x = make(whole=False)
    again = copy.deepcopy(model)
    model(divide(x)).square().mean().backward()
    x_divided = divide(x)
    checkpoint(again, x_divided, use_reentrant=False).square().mean().backward()
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    return max(largest(p.grad, q.grad) for p, q in pairs)


def autocast() -> tuple[torch.dtype, float]:
    """Return the type of a convolution under autocast, and its error."""
    torch.manual_seed(3)
    model, x = nn.Conv2d(4, 4, 3, padding=1), torch.randn(2, 4, 16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(divide(x))
    y.float().square().mean().backward()
    return y.dtype, largest(y.gather().float(), model(x))


def as_dtensor() -> float:
    """Return the difference between a DTensor's whole and the gathered tensor, on two divided axes."""
    mesh = spatial.init_mesh("cpu", data=1, b=2, c=2)
    torch.manual_seed(1)
    x = torch.randn(2, 2, 7, 5)
    divided = spatial.divide(x, mesh, {2: "b", 3: "c"})
    return largest(divided.to_dtensor().full_tensor(), divided.gather()) + largest(divided.gather(), x)


def from_parts() -> float:
    """Return the error of the gradient of a part that the rank brought itself."""
    x = torch.randn(1, 2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    part = x.chunk(dist.get_world_size(), 2)[dist.get_rank()].clone().requires_grad_()
    y = nn.functional.avg_pool1d(spatial.from_local(part, x.shape, row(), {2: "depth"}), 3, 1, 1)
    y.mean().backward()
    whole = x.clone().requires_grad_()
    nn.functional.avg_pool1d(whole, 3, 1, 1).mean().backward()
    return largest(part.grad, whole.grad.chunk(dist.get_world_size(), 2)[dist.get_rank()])


def hyperslabs(path: str) -> tuple[float, float, int]:
    """Return the errors of batches and targets that ranks read in parts, and the rows that this rank read."""
    mesh = spatial.init_mesh("cpu", data=2, depth=2)
    data = spatial.HyperslabDataset(path, "x", mesh, {2: "depth"}, targets="y")
    loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=data.sampler(shuffle=True, seed=3))
    import h5py

    with h5py.File(path) as file:
        x, y = torch.from_numpy(file["x"][:]), torch.from_numpy(file["y"][:])
    data_error = target_error = 0.0
    order = list(data.sampler(shuffle=True, seed=3))
    for step, (part, target) in enumerate(loader):
        batch = order[2 * step : 2 * step + 2]
        data_error = max(data_error, largest(data.divided(part).gather(), x[batch]))
        target_error = max(target_error, largest(target, y[batch]))
    return data_error, target_error, part.size(2)


def step_error(model: nn.Module, expected: nn.Module, x: torch.Tensor, x_divided: Any) -> float:
    """Return the largest error of the result, gradients and buffers of a step on a divided tensor."""
    y64, y = expected(x), model(x_divided)
    for result in (y64, y):
        result.square().mean().backward()
    mean_of_gradients(model)
    return max(compare(model, expected), largest(y.gather(), y64))


def partly_gathered(names: tuple[str, ...]) -> float:
    """Return the error of gradients if the inner layers are gathered over dimensions of a 2 × 2 mesh."""
    mesh = spatial.init_mesh("cpu", depth=2, height=2)
    torch.manual_seed(3)
    model, x = Skipping().double(), torch.randn(2, 2, 6, 7, 4, dtype=torch.float64)
    expected = copy.deepcopy(model)
    model.inner.register_forward_pre_hook(lambda module, args: (args[0].gather(*names),))
    return step_error(model, expected, x, spatial.divide(x, mesh, {2: "depth", 3: "height"}))


class Bottleneck(nn.Module):
    """An autoencoder with a dense layer in the middle, after which its tensors are whole."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.dense = nn.Conv2d(1, 2, 3, padding=1), nn.Linear(84, 84)
        self.decoder = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1))

    def forward(self, x: Any) -> Any:
        y = self.encoder(x)
        return self.decoder(self.dense(y.flatten(1)).reshape(y.shape))


def divided_again() -> tuple[float, list[int], list[int]]:
    """Return the error of a model that a plan divides again, and its layers' ranks without and with it."""
    torch.manual_seed(5)
    model, x = Bottleneck().double(), torch.randn(2, 1, 7, 6, dtype=torch.float64)
    expected = copy.deepcopy(model)
    world, link = dist.get_world_size(), spatial.PeerLink(0.0, 1e15)
    plan = spatial.plan(model, (1, 1, 7, 6), world=world, link=link, time_ms=volume, rate=1e15)
    mesh = spatial.init_mesh("cpu", **plan.mesh)
    with spatial.report(model) as before:
        model(spatial.divide(x, mesh, plan.axes))
    mucudnn.torch.apply(model, plan)
    with spatial.report(model) as after:
        error = step_error(model, expected, x, spatial.divide(x, mesh, plan.axes))
    undivided = mucudnn.torch.apply(copy.deepcopy(expected), plan)
    assert torch.equal(undivided(x), expected(x)), "a plan leaves whole tensors alone"
    ranks = [[layer.ranks for layer in run.layers if "Conv" in layer.kind] for run in (before, after)]
    return error, ranks[0], ranks[1]


class Keywords(nn.Module):
    """A model that calls its layers by keyword, one of which returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 2, 3, padding=1), ReturnsTuple(2, 2, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(2, 2, 2, stride=2), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (y,) = self.two(hidden=torch.relu(self.one(input=x)))
        return self.last(input=self.up(input=y, output_size=(2 * x.shape[2], 2 * x.shape[3])).movedim(1, -1))


class ReturnsTuple(nn.Conv2d):
    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor]:
        return (super().forward(hidden),)


def called_by_keyword() -> tuple[float, list[tuple[str, int]], str]:
    """Return the error of layers that are called by keyword, their ranks, and the report about them."""
    torch.manual_seed(5)
    model, x = Keywords().double(), torch.randn(1, 1, 8, 4, dtype=torch.float64)
    expected = model(x)
    world, link = dist.get_world_size(), spatial.PeerLink(0.0, 1e15)
    plan = spatial.plan(model, x.shape, world=world, link=link, time_ms=volume, rate=1e15)
    mucudnn.torch.apply(model, plan)
    with spatial.report(model) as layers:
        y = model(spatial.divide(x, spatial.init_mesh("cpu", **plan.mesh), plan.axes))
    return largest(y.gather(), expected), [(layer.name, layer.ranks) for layer in layers.layers], str(layers)


def dropped_after_gather() -> bool:
    """Return whether ranks with copies of a part drop the same elements."""
    mesh = spatial.init_mesh("cpu", depth=2, height=2)
    torch.manual_seed(dist.get_rank())
    ones = spatial.divide(torch.ones(2, 4, 6, 6), mesh, {2: "depth", 3: "height"}).gather("depth")
    y = nn.functional.dropout(ones, 0.5)
    each: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(each, y.gather().tolist())
    return all(values == each[0] for values in each)


def followed() -> tuple[float, int, int, int]:
    """Return the error of a model that follows a plan, and the bytes of the rank.

    The bytes are the plan's, those of a memory plan without offloading, and those that PyTorch allocates.
    """
    from examples.cosmoflow import CosmoFlow

    torch.manual_seed(1)
    model, shape = CosmoFlow(32, width=8), (1, 1, 32, 32, 32)
    link = spatial.PeerLink(0.01, 1e9)
    plan = spatial.plan(model, shape, world=dist.get_world_size(), link=link, time_ms=volume)
    mesh = spatial.init_mesh("cpu", **plan.mesh)
    expected, x = copy.deepcopy(model), torch.randn(shape)
    mucudnn.torch.apply(model, plan)
    divided = spatial.divide(x, mesh, plan.axes)
    kept = mucudnn.torch.plan_memory(model, divided, memory="1GiB", workspace=0, policy="none", device="h200")
    model(divided).sum().backward()
    for parameter in model.parameters():
        parameter.grad = None
    held = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers(), divided.local))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as run:
        model(divided).sum().backward()
    peak = held + peak_of(run.profiler.kineto_results.events())
    mean_of_gradients(model)
    expected(x).sum().backward()
    mucudnn.torch.restore(model)
    assert not any(module._forward_pre_hooks for module in model.modules())
    pairs = zip(model.parameters(), expected.parameters(), strict=True)
    return max(largest(p.grad, q.grad) for p, q in pairs), plan.memory, kept.peak, peak


def in_fp32() -> dict[str, list[tuple[float, float]]]:
    """Return the error and the bound of the results and of all gradients, for each network.

    With y the divided, u the undivided and y64 the fp64 result, the bound of ‖y − y64‖ is
    2‖u − y64‖ + 2ε‖y64‖.
    """
    errors: dict[str, list[tuple[float, float]]] = {}
    for name, (model, x) in models().items():
        undivided, exact = copy.deepcopy(model), copy.deepcopy(model).double()
        results = [
            whole_of(model(divide(x))), undivided(x), exact(x.double())
        ]  # fmt: skip
        for y in results:
            y.square().mean().backward()
        mean_of_gradients(model)
        vectors = [[y.detach().double().flatten() for y in results]]
        vectors.append([
            torch.cat([p.grad.double().flatten() for p in network.parameters()])
            for network in (model, undivided, exact)
        ])  # fmt: skip
        eps = torch.finfo(torch.float32).eps
        errors[name] = [
            (float((y - y64).norm()), float(2 * (u - y64).norm() + 2 * eps * y64.norm()))
            for y, u, y64 in vectors
        ]
    return errors


def local_problems(cache: str) -> tuple[list[list[tuple[int, ...]]], int]:
    """Return the shapes that this rank's convolutions get, layer by layer, and the rows of the cache."""
    from mucudnn.torch.parallel.spatial.functions import convolution

    os.environ["MUCUDNN_CACHE"] = cache
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(4, 4, 3, dilation=2), nn.Conv2d(4, 2, 1),
    )  # fmt: skip
    mucudnn.torch.convert(model, workspace="1MiB")
    shapes: list[list[tuple[int, ...]]] = []
    run = convolution._run

    def noted(window: torch.Tensor, *others: Any) -> torch.Tensor:
        shapes[-1].append(tuple(window.shape))
        return run(window, *others)

    convolution._run = noted
    for module in model:
        if isinstance(module, nn.Conv2d):
            module.register_forward_pre_hook(lambda module, args: shapes.append([]))
    model(divide(torch.randn(2, 2, 27, 9))).sum().backward()
    dist.barrier()
    with sqlite3.connect(cache) as connection:
        tables = connection.execute("select name from sqlite_master where type = 'table'").fetchall()
        rows = [connection.execute(f"select count(*) from {name}").fetchone()[0] for (name,) in tables]
    return shapes, sum(rows)


def collectives() -> list[str]:
    """Return the collective operations of torch.distributed that a training step calls after `divide`."""
    model, x = make(whole=False)
    x_divided, watched = divide(x), []
    with ExitStack() as stack:
        for name in ("all_gather", "all_reduce", "all_gather_object", "barrier"):
            calls = stack.enter_context(patch.object(dist, name, wraps=getattr(dist, name)))
            watched.append((name, calls))
        model(x_divided).square().mean().backward()
    return [name for name, calls in watched if calls.called]


def many(cases: list[Callable[[], Any]]) -> dict[str, Any]:
    """Run several cases without arguments in the same world, and return their values by name."""
    return {case.__name__: case() for case in cases}


def example(name: str) -> tuple[float, int, int]:
    """Return the error of an example, and its bytes undivided and of this rank."""
    from bench.lib.vision import import_torchvision
    from examples.spatial_common import start

    if name == "long_video":
        import_torchvision()
    return importlib.import_module(f"examples.{name}").run(start())

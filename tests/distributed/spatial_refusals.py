"""Cases that every rank of a world has to refuse: operators, arguments, and ranks that disagree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.modules._functions import SyncBatchNorm
from torch.utils.checkpoint import checkpoint

import mucudnn.torch as mt
from mucudnn.torch import spatial
from mucudnn.torch.parallel.spatial.exchange import watching


class Squared(torch.autograd.Function):
    """A function that a program wrote for whole tensors."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class Cubed(torch.autograd.Function):
    """A function that gets its context after its forward pass."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


def refusals() -> list[str]:
    """Return the cases that are accepted although they should be refused."""
    world = dist.get_world_size()
    mesh = spatial.init_mesh("cpu", depth=world)
    x = spatial.divide(torch.randn(2, 4, 8, 6), mesh, {2: "depth"})
    layer, nameless = nn.Conv2d(4, 4, 3, padding=1), init_device_mesh("cpu", (world,))
    layers = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3))
    invariant = mt.convert(layers, batch_invariant=True)
    short, row = torch.ones(1, 1, 8), torch.ones(1, 1, 1)
    calls: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
        "a written result": (TypeError, "without out=", lambda: torch.sort(x, out=(x, x))),
        "another shape in place": (TypeError, "changes the shape", lambda: x.clone().swapaxes_(1, 3)),
        "a copy as a tensor": (TypeError, "omit the call", lambda: torch.as_tensor(x)),
        "a new tensor": (TypeError, "omit the call", lambda: [len(x), torch.tensor(x)]),
        "truth": (TypeError, "gather", lambda: bool(x)),
        "a reentrant checkpoint": (
            TypeError, "use_reentrant=False", lambda: checkpoint(layer, layer(x), use_reentrant=True),
        ),
        "an autograd function": (TypeError, "Squared, an autograd", lambda: Squared.apply(layer(x))),
        "an autograd function without context": (
            TypeError, "Cubed, an autograd", lambda: Cubed.apply(layer(x)),
        ),
        "SyncBatchNorm on a GPU": (
            TypeError, "statistics='all'",
            lambda: SyncBatchNorm.apply(x, None, None, None, None, 1e-5, 0.1, None, world),
        ),
        "SyncBatchNorm on a CPU": (ValueError, "GPU", lambda: nn.SyncBatchNorm(4)(x)),
        "a sum over no axis": (ValueError, "one of the 4 axes", lambda: x.sum(9)),
        "no mesh": (TypeError, "init_mesh", lambda: spatial.divide(short, None, {2: "depth"})),
        "a mesh without names": (ValueError, "init_mesh", lambda: spatial.divide(short, nameless, {2: "a"})),
        "a list of axes": (TypeError, "{2: 'depth'}", lambda: spatial.divide(short, mesh, ["depth"])),
        "an axis by name": (TypeError, "{2: 'depth'}", lambda: spatial.divide(short, mesh, {"d": "depth"})),
        "a device that does not exist": (ValueError, "'cdu'", lambda: spatial.init_mesh("cdu", depth=world)),
        "a text as timeout": (ValueError, "timeout", lambda: spatial.init_mesh("cpu", timeout="3", d=world)),
        "a whole tensor of another size": (ValueError, "fit", lambda: x + torch.randn(2, 4, 7, 6)),
        "no such dimension": (ValueError, "no dimension", lambda: spatial.divide(short, mesh, {2: "h"})),
        "the axis of samples": (ValueError, "axis 0", lambda: spatial.divide(short, mesh, {0: "depth"})),
        "a short axis": (ValueError, "fewer than", lambda: spatial.divide(row, mesh, {2: "depth"})),
        "a mesh of another size": (ValueError, "be equal", lambda: spatial.init_mesh("cpu", depth=world + 1)),
        "batch_invariant": (ValueError, "leave batch_invariant out", lambda: invariant[0](x)),
        "batch_invariant, transposed": (ValueError, "leave batch_invariant out", lambda: invariant[1](x)),
        "a filter longer than the axis": (ValueError, "shorter", lambda: nn.Conv2d(4, 4, 9)(x)),
        "a part of another shape": (
            ValueError, "part",
            lambda: spatial.from_local(torch.ones(1, 1, 9), (1, 1, 8), mesh, {2: "depth"}),
        ),
        "statistics": (
            ValueError, "statistics",
            lambda: spatial.divide(torch.ones(1, 1, 8), mesh, {2: "depth"}, statistics="some"),
        ),
    }  # fmt: skip
    wrong = []
    for name, (kind, word, call) in calls.items():
        try:
            call()
        except kind as error:
            if word not in str(error):
                wrong.append(f"{name}: {error}")
        except Exception as error:
            wrong.append(f"{name}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{name}: accepted")
    return wrong


def divergence(kind: str) -> str:
    """Return the error of ranks that do not agree."""
    rank = dist.get_rank()
    try:
        if kind == "mesh":
            spatial.init_mesh("cpu", **({"a": 2, "b": 1} if rank else {"a": 1, "b": 2}))
        mesh = spatial.init_mesh("cpu", depth=dist.get_world_size())
        torch.manual_seed(1)
        x = torch.randn(1, 2, 8 + (kind == "shape") * rank, 6)
        if kind == "values":
            x += rank
        if kind == "type" and rank:
            x = x.double()
        if kind == "gradient" and rank:
            x.requires_grad_()
        divided = spatial.divide(x, mesh, {2: "depth"})
        if kind == "model":
            nn.Conv2d(2, 2, 3 if rank else 5, padding=1)(divided)
        if kind == "order" and rank:
            divided.sum()
        elif kind == "order":
            divided.gather()
    except spatial.DivergedError as error:
        return str(error)
    return "no error"


def absence() -> str:
    """Return the error of rank 0, for which rank 1 waits instead of taking part."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank():
        mesh = spatial.init_mesh("cpu", depth=dist.get_world_size())
        spatial.divide(torch.ones(1, 2, 8, 6), mesh, {2: "depth"})
        store.wait(["raised"])
        return ""
    mesh = spatial.init_mesh("cpu", timeout=1, depth=dist.get_world_size())
    try:
        spatial.divide(torch.ones(1, 2, 8, 6), mesh, {2: "depth"}).gather()
    except spatial.DivergedError as error:
        return str(error)
    finally:
        store.set("raised", "")
    return "no error"


def far_divergence() -> str:
    """Return the error of each of four ranks if the last rank runs a different second layer."""
    world = dist.get_world_size()
    mesh = spatial.init_mesh("cpu", depth=world)
    torch.manual_seed(1)
    padding = 2 if dist.get_rank() == world - 1 else 1
    layers = [nn.Conv1d(1, 1, 3, padding=1), nn.Conv1d(1, 1, 3, padding=padding), *[nn.Conv1d(1, 1, 3)] * 4]
    try:
        nn.Sequential(*layers)(spatial.divide(torch.randn(1, 1, 32), mesh, {2: "depth"})).sum()
    except spatial.DivergedError as error:
        return str(error)
    return "no error"


def different_sums(columns: int) -> str:
    """Return the error of ranks that add up tensors of different sizes, with a ring for many columns."""
    mesh = spatial.init_mesh("cpu", depth=dist.get_world_size())
    x = spatial.divide(torch.randn(1, columns, 8), mesh, {2: "depth"})
    try:
        x.sum([0, 2] if dist.get_rank() else [0, 1, 2])
    except spatial.DivergedError as error:
        return str(error)
    return "no error"


def border_against_layer() -> str:
    """Return the error of two ranks, one of which divides a tensor while the other runs a layer."""
    mesh = spatial.init_mesh("cpu", depth=dist.get_world_size())
    x = torch.ones(1, 1, 8)
    mine = spatial.divide(x, mesh, {2: "depth"})
    try:
        if dist.get_rank():
            nn.Conv1d(1, 1, 3)(mine)
        else:
            spatial.divide(x, mesh, {2: "depth"})
    except spatial.DivergedError as error:
        return str(error)
    return "no error"


def settled() -> str:
    """Return the disagreement that the watch sees after the ranks caught a disagreement at a border."""
    mesh = spatial.init_mesh("cpu", depth=dist.get_world_size())
    name = mesh.get_group("depth").group_name
    with suppress(spatial.DivergedError):
        spatial.divide(torch.full((1, 1, 8), float(dist.get_rank())), mesh, {2: "depth"})
    for _ in range(2):  # the second time, all ranks have published their notes
        differing = watching.disagreement(name)
        dist.barrier()
    return differing


def slow_rank() -> float:
    """Return the error of a layer to which a rank comes late.

    The late rank comes after the watch of another rank has looked for a disagreement.
    """
    mesh = spatial.init_mesh("cpu", depth=dist.get_world_size())
    torch.manual_seed(1)
    layer, x = nn.Conv1d(1, 1, 3, padding=1), torch.randn(1, 1, 8)
    mine = spatial.divide(x, mesh, {2: "depth"})
    if dist.get_rank():
        key = watching.key_of(mesh.get_group("depth"), 0)
        watching.store().wait([key], timedelta(seconds=60))
    y = layer(mine)
    return (y.gather() - layer(x)).abs().max().item()

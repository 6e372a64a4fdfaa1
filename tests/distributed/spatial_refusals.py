"""Cases that every rank of a world has to refuse: operators, arguments, and ranks that disagree."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from spatial_layers import divide, row
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
    world, mesh = dist.get_world_size(), row()
    x = divide(torch.randn(2, 4, 8, 6))
    layer, nameless = nn.Conv2d(4, 4, 3, padding=1), init_device_mesh("cpu", (world,))
    layers = nn.Sequential(nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3))
    invariant = mt.convert(layers, batch_invariant=True)
    short = torch.ones(1, 1, 8)
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
        "a short axis": (ValueError, "fewer than", lambda: divide(torch.ones(1, 1, 1))),
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
            lambda: divide(short, statistics="some"),
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
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    try:
        if kind == "mesh":
            spatial.init_mesh("cpu", **({"a": 2, "b": 1} if rank else {"a": 1, "b": 2}))
        torch.manual_seed(1)
        # The ranks add up many columns in a ring.
        x = torch.randn(1, 1 << 15 if kind == "large sum" else 4, 32 + (kind == "shape") * rank)
        if kind == "values":
            x += rank
        if kind == "type" and rank:
            x = x.double()
        if kind == "gradient" and rank:
            x.requires_grad_()
        divided = divide(x)
        if kind == "model":  # two of four ranks exchange nothing with the last one
            paddings = 1, 2 if rank == last else 1, 0, 0, 0, 0
            nn.Sequential(*(nn.Conv1d(4, 4, 3, padding=padding) for padding in paddings))(divided).sum()
        if kind in ("sum", "large sum"):
            divided.sum([0, 2] if rank else [0, 1, 2])
        if kind == "order":
            divided.sum() if rank else divided.gather()
        if kind == "border":
            nn.Conv1d(4, 4, 3)(divided) if rank else divide(x)
    except spatial.DivergedError as error:
        return str(error)
    return "no error"


def absence() -> str:
    """Return the error of rank 0, for which rank 1 waits instead of taking part."""
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank():
        divide(torch.ones(1, 2, 8, 6))
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


def settled() -> str:
    """Return the disagreement that the watch sees after the ranks caught a disagreement at a border."""
    name = row().get_group("depth").group_name
    with suppress(spatial.DivergedError):
        divide(torch.full((1, 1, 8), float(dist.get_rank())))
    for _ in range(2):  # the second time, all ranks have published their notes
        differing = watching.disagreement(name)
        dist.barrier()
    return differing


def slow_rank() -> float:
    """Return the error of a layer to which a rank comes late.

    The late rank comes after the watch of another rank has looked for a disagreement.
    """
    torch.manual_seed(1)
    layer, x = nn.Conv1d(1, 1, 3, padding=1), torch.randn(1, 1, 8)
    mine = divide(x)
    if dist.get_rank():
        key = watching.key_of(row().get_group("depth"), 0)
        watching.store().wait([key], timedelta(seconds=60))
    y = layer(mine)
    return (y.gather() - layer(x)).abs().max().item()

"""The borders between whole and divided tensors: `divide`, `from_local`, `gather`, `sum`, `mean`.

The gradient of a whole tensor that several ranks hold is the mean of the gradients that these ranks compute.
All borders are adjoints in this sense, so inside the divided region each rank has its part of the gradient
times the number of ranks that share a sample. DistributedDataParallel and FSDP2 take the mean over all ranks,
which is then the right gradient for the parameters of divided and of whole layers alike.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from mucudnn.errors import ArgumentTypeError, UsageError, shown
from mucudnn.forks import no_fork
from mucudnn.torch.parallel.ranks import naming
from mucudnn.torch.parallel.spatial.divided import Divided, Division, axes_of, handles, local_shape
from mucudnn.torch.parallel.spatial.exchange.agreement import (
    DEFAULT_TIMEOUT,
    DivergedError,
    require_agreement,
    set_timeout,
)
from mucudnn.torch.parallel.spatial.exchange.exchange import ALONE, Exchange, Owners, add_up
from mucudnn.torch.parallel.spatial.exchange.messages import described
from mucudnn.torch.parallel.spatial.exchange.sharing import share_generators
from mucudnn.torch.windows.spans import EMPTY, Span, product

_STATISTICS = ("spatial", "all")
_NUMERICS = ("caller", "same")


def init_mesh(device: str, *, timeout: float = DEFAULT_TIMEOUT, **sizes: int) -> DeviceMesh:
    """Return a DeviceMesh over all ranks of the world, for example `init_mesh("cpu", data=2, depth=2)`.

    You choose the names; `divide` takes those of the dimensions whose ranks share a sample. Neighbours in the
    last dimension have consecutive ranks. The process group must be initialised, as programs for `torchrun`
    do. `timeout`, in seconds, bounds each wait for another rank. Raises UsageError, and DivergedError if the
    ranks name different meshes.
    """
    if not dist.is_initialized():
        raise UsageError("there is no process group: call torch.distributed.init_process_group first")
    if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes.values()):
        raise UsageError(f"a mesh needs dimensions with positive sizes, such as depth=2, and got {sizes}")
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise UsageError(f"timeout is {timeout!r}: give seconds above 0")
    try:
        torch.device(device)
    except RuntimeError:
        raise UsageError(f"there is no kind of device {device!r}: give one such as 'cpu' or 'cuda'") from None
    world, ranks = dist.get_world_size(), product(list(sizes.values()))
    if world != ranks:
        text = " × ".join(f"{name}={size}" for name, size in sizes.items())
        raise UsageError(f"the mesh {text} has {ranks} ranks, but the world has {world}: they must be equal")
    meshes: list[Any] = [None] * world
    with naming("this rank made a mesh with all ranks"):
        dist.all_gather_object(meshes, (device, list(sizes.items())))
        if any(mesh != meshes[0] for mesh in meshes):
            raise DivergedError(f"the ranks name different meshes: {meshes}")
        mesh = init_device_mesh(device, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    for name in sizes:
        set_timeout(mesh.get_group(name).group_name, timeout)
    return mesh


def divide(
    whole: Tensor,
    mesh: DeviceMesh,
    axes: Mapping[int, str],
    *,
    statistics: str = "spatial",
    numerics: str = "caller",
) -> Divided:
    """Return this rank's part of a tensor that all ranks which share the sample have.

    `axes` names the mesh dimension for each divided axis: `{2: "depth"}`. Ranks along the other dimensions of
    the mesh have other samples. The parts equal those of `torch.chunk`. The gradient of `whole` is complete
    on every rank. BatchNorm takes its statistics over the ranks that share a sample, or over all ranks with
    `statistics="all"`. With `numerics="same"` a convolution computes each row of a divided axis separately,
    always by the same algorithm, so that its result has the same bits on any number of ranks. This is slower.

    Raises UsageError for axes or names that do not exist and for an axis that is shorter than its dimension
    of the mesh; DivergedError, on every rank, if the ranks hold different tensors.
    """
    if not isinstance(whole, Tensor):
        raise ArgumentTypeError(f"the tensor to divide is {type(whole).__name__}, not a tensor")
    division = division_of(whole.shape, mesh, axes, statistics, numerics)
    bits = whole.detach().cpu().contiguous().view(torch.uint8).numpy()
    text = f"{_described(whole, whole.shape)}, divided on {sorted(axes.items())}, checksum {crc32(bits):08x}"
    for group in filter(None, division.groups):
        require_agreement(group, text, whole.device)
    share_generators(division.groups, whole.device)
    return redivide(whole, division)


def from_local(
    local: Tensor,
    shape: Sequence[int],
    mesh: DeviceMesh,
    axes: Mapping[int, str],
    *,
    statistics: str = "spatial",
    numerics: str = "caller",
) -> Divided:
    """Return a divided tensor of this shape from the part that this rank already has.

    The parts must equal those of `torch.chunk`. Everything else is as in `divide`. Raises UsageError for a
    part of another shape, and DivergedError, on every rank, if the ranks name different shapes.
    """
    if not isinstance(local, Tensor):
        raise ArgumentTypeError(f"the part is {type(local).__name__}, not a tensor")
    division = division_of(tuple(shape), mesh, axes, statistics, numerics)
    expected = local_shape(shape, division)
    fits = tuple(local.shape) == expected
    text = "all parts fit" if fits else f"the part is {tuple(local.shape)}, due {expected}"
    text = f"{_described(local, shape)}, divided on {dict(axes)}, {text}"
    for group in division.groups:  # so that all ranks raise, not only a rank with a wrong part
        require_agreement(group, text, local.device)
    if not fits:
        raise UsageError(
            f"this rank's part of {tuple(shape)} is {expected}, but local is {tuple(local.shape)}"
        )
    share_generators(division.groups, local.device)
    return Divided(_scaled(local, 1 / division.ranks), shape, division)


@handles(Divided.gather)
def gather(x: Divided, names: Sequence[str] = ()) -> Any:
    """Return a tensor gathered over named dimensions of the mesh, or over all: see `Divided.gather`."""
    divided = x.division.by_name
    unknown = [name for name in names if name not in divided]
    if unknown:
        known = ", ".join(map(repr, divided))
        raise UsageError(f"the dimension {unknown[0]!r} does not divide the tensor: {known} do")
    local, left = x.local, [name for name in divided if names and name not in names]
    for axis, owners in x.division.axes:
        if owners.name not in left:
            local = Exchange.of_all_rows(axis, x.shape[axis], owners).fetch(local)
    return Divided(local, x.shape, x.division.keeping(left)) if left else local


def shared(whole: Tensor, division: Division) -> Tensor:
    """Return a whole tensor that meets divided tensors; its gradient is that of all ranks together.

    A parameter stays itself.
    """
    if not whole.requires_grad or isinstance(whole, torch.nn.Parameter):
        return whole
    return _scaled(whole, 1 / division.ranks, division.groups)


def matching_part(x: Any, shape: Sequence[int], division: Division) -> Any:
    """Return the part of a tensor that meets this rank's part of another, with axes aligned at the end.

    `shape` and `division` are those of the other tensor. An axis of size one, and an axis that the tensor
    lacks, are left to broadcasting. Anything but a tensor with axes is returned as is. Raises UsageError for
    a length that does not match.
    """
    if not isinstance(x, Divided | Tensor) or not x.dim():
        return x
    own, before = {}, len(shape) - x.dim()
    for axis, owners in division.axes:
        length = x.shape[axis - before] if axis >= before else 1
        if axis >= before and length == shape[axis]:
            own[owners.name] = axis - before
        elif length != 1:
            raise UsageError(f"a tensor of {tuple(x.shape)} does not fit a divided one of {tuple(shape)}")
    return operand(x, own, division)


def operand(x: Any, axes: Mapping[str, int], division: Division) -> Tensor:
    """Return the part of a tensor that meets this rank's part of a result with this division.

    The part is divided along an axis for each dimension of the mesh that `axes` names, and whole along all
    others. The gradient of a parameter stays the rank's own share, because data parallelism takes the mean
    over all ranks; the gradient of any other tensor is completed.
    """
    if isinstance(x, Divided):
        return redistribute(x, division.along(axes)).local if axes else x.gather()
    part = shared(x, division)
    for _, owners in division.axes:
        if owners.name in axes:
            part = owners.cut(part, axes[owners.name])
    return part


def total(x: Divided, axes: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """Return the sum over axes, by default over all, on every rank that shares the tensor."""
    axes = list(range(x.dim())) if axes is None else axes
    summed = [owners.group for axis, owners in x.division.axes if axis in axes]
    result = add_up(x.local.sum(list(axes), keepdim=keepdim), summed)
    return without_axes(x, result, axes, keepdim)


def without_axes(x: Divided, local: Tensor, axes: Sequence[int], keepdim: bool) -> Any:
    """Return a tensor from a part whose axes were reduced, so that they have length one or are gone.

    If a reduced axis was divided, all its owners must have the same part.
    """
    kept = [axis for axis in range(x.dim()) if keepdim or axis not in axes]
    left = {name: kept.index(axis) for name, axis in x.division.by_name.items() if axis not in axes}
    shape = [1 if axis in axes else x.shape[axis] for axis in kept]
    return Divided(local, shape, x.division.along(left)) if left else local


@handles(Divided.to_dtensor)
def to_dtensor(x: Divided) -> Any:
    """Return a DTensor with the same parts: see `Divided.to_dtensor`."""
    with no_fork:
        from torch.distributed.tensor import DTensor, Shard

    axis_of = x.division.by_name
    order = [name for name in x.division.mesh.mesh_dim_names if name in axis_of]
    mesh = x.division.mesh[tuple(order)]
    local = _scaled(x.local.contiguous(), x.division.ranks)
    stride = torch.empty(x.shape, device="meta").stride()
    return DTensor.from_local(
        local, mesh, [Shard(axis_of[name]) for name in order], run_check=False, shape=x.shape, stride=stride
    )


def division_of(
    shape: Sequence[int],
    mesh: DeviceMesh,
    axes: Mapping[int, str],
    statistics: str = "spatial",
    numerics: str = "caller",
) -> Division:
    """Return the division of a tensor of this shape; the arguments are those of `divide`.

    Raises UsageError.
    """
    if not isinstance(mesh, DeviceMesh):
        raise ArgumentTypeError(f"the mesh is {shown(mesh)}: make one with init_mesh")
    if not isinstance(axes, Mapping) or not all(isinstance(axis, int) for axis in axes):
        raise ArgumentTypeError(f"axes are {shown(axes)}: give a mapping such as {{2: 'depth'}}")
    names = mesh.mesh_dim_names
    if not names:
        raise UsageError(f"the dimensions of {mesh} have no names: make a mesh with init_mesh")
    if not axes:
        raise UsageError(
            "no axis is named: give the mesh dimension of each divided axis, such as {2: 'depth'}"
        )
    if len(set(axes.values())) != len(axes):
        raise UsageError(f"two axes name the same mesh dimension: {dict(axes)}")
    if statistics not in _STATISTICS or numerics not in _NUMERICS:
        raise UsageError(
            f"statistics is {statistics!r} and numerics {numerics!r}: there are {_STATISTICS} and {_NUMERICS}"
        )
    divided = []
    for axis, name in sorted(axes.items()):
        if name not in names:
            raise UsageError(f"the mesh has no dimension {name!r}: it has {', '.join(map(repr, names))}")
        if not 1 <= axis < len(shape):
            raise UsageError(
                f"axis {axis} cannot be divided: a tensor of {len(shape)} axes has the axes 1 to "
                f"{len(shape) - 1}; each rank has samples of its own, so axis 0 stays whole"
            )
        group = mesh.get_group(name)
        owners = Owners(group.group_name, dist.get_rank(group), group.size(), name)
        if shape[axis] < owners.ranks:
            raise UsageError(
                f"axis {axis} has {shape[axis]} rows, fewer than the {owners.ranks} ranks of {name!r}"
            )
        divided.append((axis, owners if owners.ranks > 1 else ALONE._replace(name=name)))
    others = tuple(mesh.get_group(name).group_name for name in names if name not in axes.values())
    return Division(tuple(divided), others, statistics, numerics, mesh)


def _described(x: Tensor, shape: Sequence[int]) -> str:
    # Included because a rank whose tensor needs no gradient does not exchange it.
    gradient = "with gradient" if x.requires_grad else "without gradient"
    return f"a tensor of {described(shape, x.dtype)}, {gradient}"


class _Cut(torch.autograd.Function):
    """The rank's own part of a whole tensor; the gradient is gathered and complete on every rank."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, division: Division) -> Tensor:
        """Return a copy of the part."""
        ctx.division, ctx.shape = division, tuple(whole.shape)
        for axis, owners in division.axes:
            whole = owners.cut(whole, axis)
        return whole.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Return the whole gradient."""
        for axis, owners in ctx.division.axes:
            g = Exchange.of_all_rows(axis, ctx.shape[axis], owners).fetch(g.contiguous())
        return g / ctx.division.ranks, None


class _Scaled(torch.autograd.Function):
    """A tensor whose gradient is multiplied by a factor, and then added up over the ranks of groups."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float, groups: tuple[str, ...]) -> Tensor:
        """Return the tensor."""
        ctx.factor, ctx.groups = factor, groups
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        """Return the sum of the gradients times the factor."""
        return add_up(g * ctx.factor, ctx.groups), None, None


def _scaled(x: Tensor, factor: float, groups: tuple[str, ...] = ()) -> Tensor:
    result: Tensor = x if factor == 1 or not x.requires_grad else _Scaled.apply(x, factor, groups)
    return result


def redivide(x: Any, division: Division) -> Divided:
    """Divide a tensor over the dimensions of the mesh over which it is whole, because it was gathered."""
    own, local = (x.division.by_name, x.local) if isinstance(x, Divided) else ({}, x)
    left = division.keeping([name for name in division.by_name if name not in own])
    return Divided(_Cut.apply(local, left), x.shape, division)


def redistribute(x: Any, division: Division) -> Divided:
    """Return a whole or divided tensor under another division, whose axes it has.

    A dimension of the mesh that divides another axis moves there, unless another dimension divides that axis
    now: then both are gathered, and divided again. Raises UsageError for a tensor on another mesh.
    """
    if not isinstance(x, Divided):
        return redivide(x, division)
    if x.division.axes == division.axes:
        return Divided(x.local, x.shape, division)
    if x.division.mesh is not division.mesh:
        raise UsageError(f"{x} is divided on another mesh than the tensors that it meets")
    wanted = division.by_name
    for axis, owners in x.division.axes:
        if wanted.get(owners.name, axis) not in x.divided_axes:
            return redistribute(_moved(x, axis, wanted[owners.name]), division)
    moving = [name for name, axis in x.division.by_name.items() if wanted.get(name) != axis]
    return redivide(gather(x, moving) if moving else x, division)


def _moved(x: Divided, axis: int, to: int) -> Divided:
    """Return a tensor divided along another axis: each owner gets its rows of that axis from all others."""
    owners, pieces = x.owners(axis), []
    for place, rows in enumerate(owners.parts(x.shape[to])):
        wanted = [EMPTY] * owners.ranks
        wanted[place] = Span(0, x.shape[axis])
        fetched = x.exchange(axis, wanted).fetch(x.local.narrow(to, rows.lo, rows.size))
        pieces.append(fetched.flatten())  # empty, unless it is this rank's
    division = x.division.on_axes([to if a == axis else a for a in x.divided_axes])
    return Divided(torch.cat(pieces).reshape(local_shape(x.shape, division)), x.shape, division)


@handles("sum", "mean")
def _reduced(
    function: Any, x: Divided, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None
) -> Any:
    if dtype is not None:
        x = x.with_local(x.local.to(dtype))
    axes = axes_of(x, dim if axis is None else axis)
    result = total(x, axes, keepdim)
    if function.__name__ == "mean":
        return result / product([x.shape[axis] for axis in axes])
    return result

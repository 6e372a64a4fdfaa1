"""The borders between whole and divided tensors: `divide`, `from_local`, `gather`, `sum`, `mean`.

The gradient of a whole tensor that several ranks hold is the mean over the ranks of what each computes. All
borders are adjoints in this sense. So inside the divided region each rank has its part of the gradient times
the number of ranks that share a sample. DistributedDataParallel and FSDP2 take the mean over all ranks, and
get the right gradient for the parameters of divided and of whole layers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from mucudnn.errors import ArgumentTypeError, UsageError, shown
from mucudnn.forks import no_fork
from mucudnn.torch.parallel.spatial.divided import Divided, Division, axis_of, handles, local_shape
from mucudnn.torch.parallel.spatial.exchange.agreement import (
    DEFAULT_TIMEOUT,
    DivergedError,
    agree,
    set_timeout,
)
from mucudnn.torch.parallel.spatial.exchange.exchange import ALONE, Owners, add_up, fetch
from mucudnn.torch.parallel.spatial.exchange.sharing import share_generators
from mucudnn.torch.parallel.spatial.windows import Span, parts, product

_STATISTICS = ("spatial", "all")
_NUMERICS = ("caller", "same")
_DIGESTED = 1 << 20  # elements at a time, because their products take 8 bytes each


def init_mesh(device: str, *, timeout: float = DEFAULT_TIMEOUT, **sizes: int) -> DeviceMesh:
    """Return a DeviceMesh over all ranks of the world, for example `init_mesh("cpu", data=2, depth=2)`.

    The names are yours. `divide` says which of them share a sample. Ranks that lie next to each other in the
    last dimension have consecutive numbers. The process group must be initialised, as `torchrun` programs do.
    `timeout`, in seconds, bounds each wait for another rank.
    Raises UsageError, and DivergedError if the ranks name different meshes.
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
    world, given = dist.get_world_size(), product(list(sizes.values()))
    if world != given:
        text = " × ".join(f"{name}={size}" for name, size in sizes.items())
        raise UsageError(f"the mesh {text} has {given} ranks, but the world has {world}: they must be equal")
    given_by_all: list[Any] = [None] * world
    dist.all_gather_object(given_by_all, (device, list(sizes.items())))
    if any(other != given_by_all[0] for other in given_by_all):
        raise DivergedError(f"the ranks name different meshes: {given_by_all}")
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

    `axes` names the mesh dimension for each divided axis: `{2: "depth"}`. The other dimensions of the mesh
    hold other samples. The parts equal those of `torch.chunk`. The gradient of `whole` is complete on every
    rank. BatchNorm takes its statistics over the ranks that share a sample, or over all with
    `statistics="all"`. With `numerics="same"` a convolution computes each row of a divided axis by itself, by
    one algorithm. Its result then has the same bits on any number of ranks, and takes longer.

    Raises UsageError for axes or names that do not exist and for an axis that is shorter than its dimension
    of the mesh; DivergedError, on every rank, if the ranks hold different tensors.
    """
    if not isinstance(whole, Tensor):
        raise ArgumentTypeError(f"the tensor to divide is {type(whole).__name__}, not a tensor")
    division = _division(whole.shape, mesh, axes, statistics, numerics)
    _agree_on_whole(whole, division)
    return _cut(whole, division)


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

    The parts must be those of `torch.chunk`. Everything else is as in `divide`. Raises UsageError for a part
    of another shape, and DivergedError, on every rank, if the ranks name different shapes.
    """
    if not isinstance(local, Tensor):
        raise ArgumentTypeError(f"the part is {type(local).__name__}, not a tensor")
    division = _division(tuple(shape), mesh, axes, statistics, numerics)
    for group in division.groups:
        agree(group, f"{_described(local, shape)}, divided on {dict(axes)}", local.device)
    expected = local_shape(shape, division)
    fits = tuple(local.shape) == expected
    for group in division.groups:  # all ranks raise, not only the one with the wrong part
        agree(
            group,
            "all parts fit" if fits else f"the part is {tuple(local.shape)}, due {expected}",
            local.device,
        )
    if not fits:
        raise UsageError(
            f"this rank's part of {tuple(shape)} is {expected}, and the given one {tuple(local.shape)}"
        )
    share_generators(division.groups, local.device)
    return Divided(_scaled(local, 1 / division.ranks), shape, division)


def gather(x: Divided, names: Sequence[str] = ()) -> Any:
    """Return the whole tensor on every rank that shares it. Autograd follows.

    With names of dimensions of the mesh, only the axes that they divide are gathered: the result is divided
    over the other dimensions, and the ranks along these have copies. Raises UsageError for a name that does
    not divide the tensor.
    """
    unknown = [name for name in names if name not in x.division.names]
    if unknown:
        divided = ", ".join(map(repr, x.division.names))
        raise UsageError(f"the dimension {unknown[0]!r} does not divide the tensor: {divided} do")
    local, left = x.local, [name for name in x.division.names if names and name not in names]
    for (axis, owners), name in zip(x.division.axes, x.division.names, strict=True):
        if name not in left:
            everything = (Span(0, x.shape[axis]),) * owners.ranks
            local = fetch(local, axis, x.parts(axis), everything, owners)
    return Divided(local, x.shape, x.division.keeping(left)) if left else local


def spread(whole: Tensor, like: Divided) -> Tensor:
    """Return the part of a whole tensor that meets this rank's part of `like`, with axes aligned at the end.

    An axis of size one, and an axis that the tensor lacks, stay for broadcasting. A parameter's gradient
    stays the rank's own share: data parallelism takes the mean over all ranks. The gradient of any other
    tensor is made complete. Raises UsageError for a length that does not match.
    """
    if whole.requires_grad and not isinstance(whole, torch.nn.Parameter):
        whole = _scaled(_Replicated.apply(whole, like.division.groups), 1 / like.division.ranks)
    for axis in like.divided_axes:
        at = axis - like.dim() + whole.dim()
        if at < 0 or whole.size(at) == 1:
            continue
        if whole.size(at) != like.shape[axis]:
            raise UsageError(
                f"a tensor of {tuple(whole.shape)} does not fit a divided one of {tuple(like.shape)}"
            )
        own = like.own(axis)
        whole = whole.narrow(at, own.lo, own.size)
    return whole


def total(x: Divided, axes: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """Return the sum over axes, by default over all, on every rank that shares the tensor."""
    axes = list(range(x.dim())) if axes is None else axes
    summed = [owners.group for axis, owners in x.division.axes if axis in axes]
    found = add_up(x.local.sum(list(axes), keepdim=keepdim), summed)
    if all(axis in axes for axis in x.divided_axes):
        return found
    if summed:
        raise ArgumentTypeError(
            "a sum over some of the divided axes alone is not in the table: gather the tensor first"
        )
    shape = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
    kept = [axis for axis in range(x.dim()) if keepdim or axis not in axes]
    moved = x.division.on_axes([kept.index(axis) for axis in x.divided_axes])
    return Divided(found, [shape[axis] for axis in kept], moved)


def to_dtensor(x: Divided) -> Any:
    """Return a DTensor with the same parts. The gradient of the DTensor is the true one."""
    with no_fork:
        from torch.distributed.tensor import DTensor, Shard

    order = [name for name in x.division.mesh.mesh_dim_names if name in x.division.names]
    axis_of = dict(zip(x.division.names, x.divided_axes, strict=True))
    mesh = x.division.mesh[tuple(order)]
    local = _scaled(x.local.contiguous(), x.division.ranks)
    stride = torch.empty(x.shape, device="meta").stride()
    return DTensor.from_local(
        local, mesh, [Shard(axis_of[name]) for name in order], run_check=False, shape=x.shape, stride=stride
    )


def _division(
    shape: Sequence[int], mesh: DeviceMesh, axes: Mapping[int, str], statistics: str, numerics: str
) -> Division:
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
    found = []
    for axis, name in sorted(axes.items()):
        if name not in names:
            raise UsageError(f"the mesh has no dimension {name!r}: it has {', '.join(map(repr, names))}")
        if not 1 <= axis < len(shape):
            raise UsageError(
                f"axis {axis} cannot be divided: a tensor of {len(shape)} axes has the axes 1 to "
                f"{len(shape) - 1}; each rank has samples of its own, so axis 0 stays whole"
            )
        group = mesh.get_group(name)
        owners = Owners(group.group_name, dist.get_rank(group), group.size())
        if shape[axis] < owners.ranks:
            raise UsageError(
                f"axis {axis} has {shape[axis]} rows, fewer than the {owners.ranks} ranks of {name!r}"
            )
        found.append((axis, owners if owners.ranks > 1 else ALONE))
    others = tuple(mesh.get_group(name).group_name for name in names if name not in axes.values())
    return Division(
        tuple(found), others, statistics, numerics, mesh, tuple(name for _, name in sorted(axes.items()))
    )


def _agree_on_whole(whole: Tensor, division: Division) -> None:
    """Raise DivergedError on every rank if the ranks hold tensors of different shapes, types or values."""
    axes = list(zip([axis for axis, _ in division.axes], division.names, strict=True))
    text = f"{_described(whole, whole.shape)}, divided on {axes}, {_digest(whole)}"
    for group in division.groups:
        if group:
            agree(group, text, whole.device)
    share_generators(division.groups, whole.device)


def _described(x: Tensor, shape: Sequence[int]) -> str:
    gradient = (
        "with gradient" if x.requires_grad else "without gradient"
    )  # or its exchange would have no partner
    return f"a tensor of {tuple(shape)}, {str(x.dtype).removeprefix('torch.')}, {gradient}"


def _digest(whole: Tensor) -> str:
    """Return a short text that differs for tensors with different elements, with high probability."""
    if whole.is_complex():
        whole = torch.view_as_real(whole)
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = whole.detach().contiguous().view(-1).view(kinds[whole.element_size()])
    found, weights = 0, torch.arange(1, min(bits.numel(), _DIGESTED) + 1, device=bits.device)
    for piece in bits.split(_DIGESTED):
        found = found * 31 + int((piece * weights[: piece.numel()]).sum())
    return f"digest {found % 2**48:012x}"


class _Cut(torch.autograd.Function):
    """The rank's own part of a whole tensor; the gradient is gathered and complete on every rank."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, division: Division) -> Tensor:
        """Return a copy of the part."""
        ctx.division, ctx.shape = division, tuple(whole.shape)
        for axis, owners in division.axes:
            own = parts(whole.size(axis), owners.ranks)[owners.rank]
            whole = whole.narrow(axis, own.lo, own.size)
        return whole.clone(memory_format=torch.contiguous_format)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Return the whole gradient."""
        for axis, owners in ctx.division.axes:
            size = ctx.shape[axis]
            everything = (Span(0, size),) * owners.ranks
            g = fetch(g.contiguous(), axis, parts(size, owners.ranks), everything, owners)
        return g / ctx.division.ranks, None


class _Replicated(torch.autograd.Function):
    """A whole tensor that meets divided ones; each rank's share of its gradient is added up."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, groups: tuple[str, ...]) -> Tensor:
        """Return the tensor."""
        ctx.groups = groups
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Return the sum of all shares."""
        return add_up(g, ctx.groups), None


class _Scaled(torch.autograd.Function):
    """A tensor whose gradient is multiplied by a factor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        """Return the tensor."""
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Return the gradient times the factor that the forward pass was given; none for the factor."""
        return g * ctx.factor, None


def _cut(whole: Tensor, division: Division) -> Divided:
    return Divided(_Cut.apply(whole, division), whole.shape, division)


def _scaled(x: Tensor, factor: float) -> Tensor:
    result: Tensor = x if factor == 1 or not x.requires_grad else _Scaled.apply(x, factor)
    return result


def redivide(whole: Tensor, division: Division) -> Divided:
    """Return a whole tensor, such as a gathered and changed one, divided again."""
    return _cut(whole, division)


def divide_further(x: Divided, division: Division) -> Divided:
    """Return a tensor that was gathered over some dimensions of the mesh, divided over these again."""
    left = division.keeping([name for name in division.names if name not in x.division.names])
    return Divided(_Cut.apply(x.local, left), x.shape, division)


def _axes(x: Divided, given: Any) -> list[int]:
    if given is None or given == ():
        return list(range(x.dim()))
    return [axis_of(x, axis) for axis in (given if isinstance(given, Sequence) else (given,))]


@handles(Divided.gather)
def _gathered(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return gather(*args, **kwargs)


@handles(Divided.to_dtensor)
def _as_dtensor(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return to_dtensor(*args, **kwargs)


@handles(torch.sum, Tensor.sum, torch.mean, Tensor.mean)
def _reduced(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, dim, keepdim, dtype = _reduction_arguments(*args, **kwargs)
    if dtype is not None:
        x = x.with_local(x.local.to(dtype))
    axes = _axes(x, dim)
    found = total(x, axes, keepdim)
    if function in (torch.mean, Tensor.mean):
        return found / product([x.shape[axis] for axis in axes])
    return found


def _reduction_arguments(
    x: Divided, dim: Any = None, keepdim: bool = False, *, dtype: Any = None, axis: Any = None
) -> tuple[Divided, Any, bool, Any]:
    return x, dim if axis is None else axis, keepdim, dtype

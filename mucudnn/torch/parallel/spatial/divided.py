"""`Divided`: a tensor of which each rank has a part, and the table of the functions that know it.

A handler is registered for each function of PyTorch that may take a Divided. A function without a handler
raises a TypeError that says what to do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.torch.layers.functional import DividedInput
from mucudnn.torch.parallel.spatial.exchange.exchange import ALONE, Owners
from mucudnn.torch.parallel.spatial.exchange.sharing import compare
from mucudnn.torch.parallel.spatial.refusing import check_gradient, name_of, refuse_unknown
from mucudnn.torch.parallel.spatial.windows import Span, parts, product

Handler = Callable[..., Any]
_table: dict[Any, Handler] = {}
_READING_NO_VALUES = (Tensor.to, Tensor.type_as)  # another tensor gives a type and a device
_OPERATORS = (
    *("add", "radd", "iadd", "sub", "rsub", "isub", "mul", "rmul", "imul", "truediv", "rtruediv", "itruediv"),
    *(
        "pow",
        "rpow",
        "neg",
        "abs",
        "matmul",
        "getitem",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and",
        "or",
        "invert",
    ),
)


class Division(NamedTuple):
    """The way in which a tensor is divided.

    `axes` gives the owners of each divided axis. `others` are the groups of the mesh that hold other samples.
    `statistics` is "spatial" or "all": the ranks over which batch norms take their statistics. `numerics` is
    "caller" or "same": with "same", a convolution has the same bits on any number of ranks. `mesh` and
    `names`, the mesh's dimensions by axis, are for `to_dtensor`. `copies` are the groups whose ranks all have
    the same part, because the tensor was gathered over them.
    """

    axes: tuple[tuple[int, Owners], ...]
    others: tuple[str, ...]
    statistics: str
    numerics: str
    mesh: Any
    names: tuple[str, ...]
    copies: tuple[str, ...] = ()

    def owners(self, axis: int) -> Owners:
        """Return the owners of an axis; an undivided axis has one."""
        return dict(self.axes).get(axis, ALONE)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups over which one sample is divided."""
        return tuple(owners.group for _, owners in self.axes)

    @property
    def sharing(self) -> tuple[str, ...]:
        """The groups over which a whole tensor is the same: those of the sample, and those with copies."""
        return self.groups + self.copies

    @property
    def ranks(self) -> int:
        """The number of ranks that share a sample."""
        count = 1
        for _, owners in self.axes:
            count *= owners.ranks
        return count

    def keeping(self, names: Sequence[str]) -> "Division":
        """Return the division over these dimensions of the mesh alone; the others have copies."""
        pairs = list(zip(self.axes, self.names, strict=True))
        return self._replace(
            axes=tuple(axis for axis, name in pairs if name in names),
            names=tuple(name for _, name in pairs if name in names),
            copies=self.copies
            + tuple(owners.group for (_, owners), name in pairs if owners.group and name not in names),
        )

    def on_axes(self, new: Sequence[int]) -> "Division":
        """Return the division with its axes, in order, replaced by others."""
        pairs = sorted(zip(new, self.axes, self.names, strict=True))
        return self._replace(
            axes=tuple((axis, owners) for axis, (_, owners), _ in pairs),
            names=tuple(name for _, _, name in pairs),
        )


@dataclass(eq=False, repr=False)  # FSDP2 looks for tensors in dataclasses
class Divided(DividedInput):
    """A tensor of which this rank has the part `local`. `shape` is the shape of the whole.

    It is no torch.Tensor. Modules and functions of PyTorch take it in the place of one, if they are in the
    table of `mucudnn.torch.spatial`; everything else raises a TypeError.
    """

    local: Tensor
    shape: Sequence[int]
    division: Division

    def __post_init__(self) -> None:
        self.shape = torch.Size(self.shape)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        handler = _table.get(func)
        if handler is None:
            raise refuse_unknown(func)
        if not torch.is_grad_enabled():
            for one in args:
                if isinstance(one, Divided):
                    check_gradient(one.local)
        if not torch.compiler.is_compiling() and func not in _READING_NO_VALUES:
            _compare_whole(func, (*args, *(kwargs or {}).values()))
        return handler(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        method = getattr(Tensor, name, None)
        if name.startswith("__") or method is None:
            raise AttributeError(f"a divided tensor has no attribute {name!r}")
        if not callable(method):
            raise AttributeError(f"a divided tensor has no attribute {name!r}: gather the tensor first")

        def call(*args: Any, **kwargs: Any) -> Any:
            return Divided.__torch_function__(method, (), (self, *args), kwargs)

        return call

    def size(self, axis: int | None = None) -> Any:
        """Return the shape of the whole, or its length on one axis."""
        return self.shape if axis is None else self.shape[axis]

    def dim(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    ndimension = dim

    def numel(self) -> int:
        """Return the number of elements of the whole."""
        return product(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        raise ArgumentTypeError("the truth of a divided tensor is not known here: gather the tensor first")

    def is_floating_point(self) -> bool:
        """Return whether the elements are floating-point numbers."""
        return bool(self.local.is_floating_point())

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The data type."""
        return self.local.dtype

    @property
    def device(self) -> torch.device:
        """The device of this rank's part."""
        return self.local.device

    @property
    def is_cuda(self) -> bool:
        """True if this rank's part is on a CUDA device."""
        return bool(self.local.is_cuda)

    @property
    def requires_grad(self) -> bool:
        """True if autograd follows the tensor."""
        return bool(self.local.requires_grad)

    def __repr__(self) -> str:
        axes = ", ".join(f"axis {axis} over {owners.ranks} ranks" for axis, owners in self.division.axes)
        return f"Divided(shape {tuple(self.shape)}, {axes}, here {tuple(self.local.shape)})"

    def gather(self, *names: str) -> Any:
        """Return the whole tensor on every rank that shares it; autograd follows. See `border.gather`."""
        return _table[Divided.gather](Divided.gather, (self, names), {})

    def to_dtensor(self) -> Any:
        """Return a DTensor with the same parts, sharded over the spatial dimensions of the mesh."""
        return _table[Divided.to_dtensor](Divided.to_dtensor, (self,), {})

    def owners(self, axis: int) -> Owners:
        """Return the owners of an axis."""
        return self.division.owners(axis)

    def parts(self, axis: int) -> tuple[Span, ...]:
        """Return the rows of an axis that each of its owners has."""
        return parts(self.shape[axis], self.owners(axis).ranks)

    def own(self, axis: int) -> Span:
        """Return the rows of an axis that this rank has."""
        return self.parts(axis)[self.owners(axis).rank]

    @property
    def divided_axes(self) -> tuple[int, ...]:
        """The divided axes, ascending."""
        return tuple(axis for axis, _ in self.division.axes)

    def with_local(self, local: Tensor, shape: Sequence[int] | None = None) -> "Divided":
        """Return a tensor with the same division, another part and perhaps another shape."""
        return Divided(local, self.shape if shape is None else shape, self.division)


def _compare_whole(function: Any, args: Sequence[Any]) -> None:
    """Raise DivergedError, on every rank, if whole tensors beside a divided one differ between ranks."""
    given = [one for arg in args for one in (arg if isinstance(arg, list | tuple) else (arg,))]
    divided = next((one for one in given if isinstance(one, Divided)), None)
    whole = [one for one in given if isinstance(one, Tensor)]
    if divided is not None and whole:
        compare(name_of(function), whole, divided.division.sharing)


def local_shape(shape: Sequence[int], division: Division) -> tuple[int, ...]:
    """Return the shape of this rank's part of a tensor."""
    result = list(shape)
    for axis, owners in division.axes:
        result[axis] = parts(shape[axis], owners.ranks)[owners.rank].size
    return tuple(result)


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    """Register a handler, called as `handler(function, args, kwargs)`, for functions that exist."""

    def register(handler: Handler) -> Handler:
        for function in functions:
            if function is not None:
                _table[function] = handler
        return handler

    return register


def known() -> list[str]:
    """Return the names of the functions in the table, sorted."""
    return sorted({name_of(function) for function in _table})


def spelled(name: str, *places: Any) -> list[Any]:
    """Return all functions that PyTorch has under a name; `places` are modules beside the usual ones."""
    return [
        found
        for place in (torch, torch.nn.functional, Tensor, *places)
        if (found := getattr(place, name, None)) is not None
    ]


def axis_of(x: Divided, axis: int) -> int:
    """Return an axis as a number from 0. Raises UsageError."""
    if not -x.dim() <= axis < x.dim():
        raise UsageError(f"axis {axis} is not one of the {x.dim()} axes of {x}")
    return axis % x.dim()


def _dunder(name: str) -> Any:
    function = getattr(Tensor, name)

    def call(self: Divided, *args: Any) -> Any:
        return Divided.__torch_function__(function, (), (self, *args), {})

    return call


for _operator in _OPERATORS:
    setattr(Divided, f"__{_operator}__", _dunder(f"__{_operator}__"))
Divided.__hash__ = object.__hash__  # type: ignore[method-assign]  # __eq__ compares elements, as a tensor's

pytree.register_pytree_node(
    Divided,
    lambda x: ([x.local], (x.shape, x.division)),
    lambda children, context: Divided(children[0], *context),
    serialized_type_name="mucudnn.torch.spatial.Divided",
)

"""`Divided`: a tensor of which each rank has a part, and the table of the functions that take it.

The table has a handler for each function of PyTorch that works on parts. Any other function, and one whose
handler refuses its arguments, runs on gathered tensors: see `gathering`.
"""

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.torch.layers.functional import DividedInput
from mucudnn.torch.parallel.spatial.exchange.exchange import ALONE, Exchange, Owners
from mucudnn.torch.parallel.spatial.exchange.sharing import compare
from mucudnn.torch.parallel.spatial.pending import compute_before
from mucudnn.torch.parallel.spatial.refusing import NotInTableError, check_gradient, name_of
from mucudnn.torch.windows.spans import Span, Window, product, windows_of

Handler = Callable[..., Any]
AnyHandler = TypeVar("AnyHandler", bound=Handler)
_table: dict[Any, Handler] = {}
_of_divided: set[Handler] = set()  # handlers whose first tensor has to be divided
_READING_NO_VALUES = (Tensor.to, Tensor.type_as)  # they read only the type and device of another tensor
_KNOWING = sys.stdlib_module_names | {"torch", "mucudnn"}  # dataclasses.replace makes an object of the class
_ASKING = {"is_tensor", "isinstance", "_isinstance"}  # functions of PyTorch that ask for their callers
_OF_PARTS = {
    "dtype", "device", "requires_grad", "layout", "itemsize", "is_floating_point",
    "is_cpu", "is_cuda", "is_mps", "is_meta", "is_sparse", "is_quantized", "is_nested",
}  # fmt: skip
_NAMES = """
add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv pow rpow neg abs
floordiv rfloordiv mod rmod
eq ne lt le gt ge and or xor invert
"""
ELEMENTWISE_OPERATORS = tuple(f"__{name}__" for name in _NAMES.split())
"""The methods for Python's operators on each element, which a Divided has and `elementwise` handles."""


class Division(NamedTuple):
    """The way in which a tensor is divided.

    Attributes:
        axes: the divided axes, ascending, each with its owners.
        others: the groups of the mesh that hold other samples.
        statistics: "spatial" or "all", the ranks over which batch norms take their statistics.
        numerics: "caller", or "same" if convolutions have the same bits on any number of ranks.
        mesh: the mesh, for `to_dtensor`.
        copies: the groups whose ranks all have the same part, because the tensor was gathered over them.
    """

    axes: tuple[tuple[int, Owners], ...]
    others: tuple[str, ...]
    statistics: str
    numerics: str
    mesh: Any
    copies: tuple[str, ...] = ()

    def owners(self, axis: int) -> Owners:
        """Return the owners of an axis: this rank alone if it is undivided."""
        return dict(self.axes).get(axis, ALONE)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups over which one sample is divided."""
        return tuple(owners.group for _, owners in self.axes)

    @property
    def sharing(self) -> tuple[str, ...]:
        """The groups over which a whole tensor is the same, which share the sample or have copies."""
        return self.groups + self.copies

    @property
    def ranks(self) -> int:
        """The number of ranks that share a sample."""
        return product([owners.ranks for _, owners in self.axes])

    @property
    def place(self) -> int:
        """The place of this rank among the ranks that share a sample."""
        place = 0
        for _, owners in self.axes:
            place = place * owners.ranks + owners.rank
        return place

    def along(self, axes: Mapping[str, int]) -> "Division":
        """Return the division over these dimensions of the mesh, each along the axis that it names.

        Ranks along the other dimensions have copies.
        """
        kept = [owners for _, owners in self.axes if owners.name in axes]
        gone = [owners.group for _, owners in self.axes if owners.group and owners.name not in axes]
        return self._replace(
            axes=tuple(sorted((axes[owners.name], owners) for owners in kept)), copies=(*self.copies, *gone)
        )

    def keeping(self, names: Sequence[str]) -> "Division":
        """Return the division over these dimensions of the mesh only."""
        return self.along({name: axis for name, axis in self.by_name.items() if name in names})

    @property
    def by_name(self) -> dict[str, int]:
        """The axis that each dimension of the mesh divides."""
        return {owners.name: axis for axis, owners in self.axes}

    def on_axes(self, new: Sequence[int]) -> "Division":
        """Return the division with its axes, in order, replaced by others."""
        owners = (owners for _, owners in self.axes)
        return self._replace(axes=tuple(sorted(zip(new, owners, strict=True))))


@dataclass(eq=False, repr=False)  # FSDP2 looks for tensors in dataclasses
class Divided(DividedInput):
    """A tensor of which this rank has the part `local`. `shape` is the shape of the whole.

    Modules and functions of PyTorch take it instead of a tensor. It answers `isinstance(x, torch.Tensor)`
    with True, because models have branches for tensors, but its type is not a subclass: an
    autograd.Function would take an instance of a subclass and silently lose its gradient. To PyTorch's own
    code it is not a tensor, so that parameters, buffers, hooks and compilers see what it is.
    """

    __module__ = "torch"  # opt_einsum takes its functions from the package of the class
    local: Tensor
    shape: Sequence[int]
    division: Division

    def __post_init__(self) -> None:
        self.shape = torch.Size(self.shape)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not torch.is_grad_enabled():
            for argument in args:
                if isinstance(argument, Divided):
                    check_gradient(argument._typed)
        if not torch.compiler.is_compiling() and func not in _READING_NO_VALUES:
            _compare_whole(func, (*args, *(kwargs or {}).values()))
        return _run(func, args, kwargs or {})

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Divided for PyTorch, Python's own modules and this package, and torch.Tensor for other callers."""
        caller = sys._getframe(1)
        while caller.f_code.co_name in _ASKING and _room_of(caller) == "torch" and caller.f_back is not None:
            caller = caller.f_back
        # C code and guards of compiled code have no frame of their own, and need the class itself.
        if "isinstance" not in caller.f_code.co_names and "is_tensor" not in caller.f_code.co_names:
            return Divided
        return Divided if _room_of(caller) in _KNOWING else Tensor

    def __getattr__(self, name: str) -> Any:
        if name in _OF_PARTS:
            return getattr(self._typed, name)
        method = getattr(Tensor, name, None)
        if name == "__dlpack__":  # torch.as_tensor looks for it before it asks for the length
            self.__dict__["_converted_at"] = _place_of(sys._getframe(1))
        if name.startswith("__") or method is None:
            raise AttributeError(f"a divided tensor has no attribute {name!r}")
        if not callable(method):
            raise AttributeError(f"a divided tensor has no attribute {name!r}: gather the tensor first")

        def call(*args: Any, **kwargs: Any) -> Any:
            return Divided.__torch_function__(method, (), (self, *args), kwargs)

        return call

    @property
    def _typed(self) -> Tensor:
        """A tensor with the type, the device and the history of the part."""
        return self.local

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
        converted_at = None if torch.compiler.is_compiling() else self.__dict__.pop("_converted_at", None)
        if converted_at is not None and converted_at == _place_of(sys._getframe(1)):
            raise ArgumentTypeError(
                "torch.as_tensor and torch.tensor would copy a divided tensor number by number and lose its "
                "gradient: omit the call, because it is a tensor already, or gather it first"
            )
        return self.shape[0]

    def __bool__(self) -> bool:
        raise ArgumentTypeError("the truth of a divided tensor is not known here: gather the tensor first")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def T(self) -> Any:  # noqa: N802 (PyTorch's own name for it)
        """The tensor with its axes in the opposite order."""
        return self.permute(*reversed(range(self.ndim)))

    @property
    def mT(self) -> Any:  # noqa: N802 (PyTorch's own name for it)
        """The tensor with its last two axes exchanged."""
        return self.transpose(-2, -1)

    @property
    def data(self) -> Any:
        """The tensor without its history."""
        return self.detach()

    def __repr__(self) -> str:
        axes = ", ".join(f"axis {axis} over {owners.ranks} ranks" for axis, owners in self.division.axes)
        return f"Divided(shape {tuple(self.shape)}, {axes}, here {tuple(self.local.shape)})"

    def gather(self, *names: Any, **elements: Any) -> Any:
        """Return the whole tensor on every rank that shares it. Autograd follows.

        With names of dimensions of the mesh, only the axes that they divide are gathered: the result is
        divided over the other dimensions, and the ranks along the named dimensions have copies. Raises
        UsageError for a name that does not divide the tensor. With an axis and an index it is
        torch.Tensor.gather.
        """
        if elements or (names and isinstance(names[0], int)):
            return Divided.__torch_function__(Tensor.gather, (), (self, *names), elements)
        return _table[Divided.gather](self, names)  # `border` registers it, because it needs this class

    def to_dtensor(self) -> Any:
        """Return a DTensor with the same parts, sharded over the spatial dimensions of the mesh.

        The gradient of the DTensor is the true gradient.
        """
        return _table[Divided.to_dtensor](self)

    def owners(self, axis: int) -> Owners:
        """Return the owners of an axis."""
        return self.division.owners(axis)

    def parts(self, axis: int) -> tuple[Span, ...]:
        """Return the rows of an axis that each of its owners has."""
        return self.owners(axis).parts(self.shape[axis])

    def own(self, axis: int) -> Span:
        """Return the rows of an axis that this rank has."""
        return self.owners(axis).own(self.shape[axis])

    def exchange(self, axis: int, windows: Sequence[Span]) -> Exchange:
        """Return the exchange of rows of an axis for the windows of all ranks."""
        return Exchange(axis, self.parts(axis), tuple(windows), self.owners(axis))

    def exchange_for(self, axis: int, outputs: int, window: Window) -> Exchange:
        """Return the exchange of rows of an axis for an operator with this many outputs along it."""
        return self.exchange(axis, windows_of(self.owners(axis).parts(outputs), window))

    @property
    def divided_axes(self) -> tuple[int, ...]:
        """The divided axes, ascending."""
        return tuple(axis for axis, _ in self.division.axes)

    def with_local(self, local: Tensor, shape: Sequence[int] | None = None) -> "Divided":
        """Return a tensor with the same division, and another part."""
        return Divided(local, self.shape if shape is None else shape, self.division)


def _place_of(frame: FrameType) -> tuple[Any, int]:
    """Return the code that a frame runs and the place in it."""
    return frame.f_code, frame.f_lasti


def _room_of(frame: FrameType) -> str:
    """Return the top package of the code that a frame runs."""
    name: str = frame.f_globals.get("__name__", "torch")
    return name.partition(".")[0]


def _run(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the handler of a function, or the function on gathered tensors if the handler refuses."""
    compute_before(function, args, kwargs)
    handler = _table.get(function)
    reason = ""
    if handler in _of_divided and args and not isinstance(args[0], Divided):
        reason = f"{name_of(function)} of a whole tensor with a divided one is not in the table"
        handler = None
    if handler is not None and kwargs.get("out") is None:
        options = {name: value for name, value in kwargs.items() if name != "out"}
        try:
            return handler(function, *args, **options)
        except NotInTableError as refusal:
            reason = str(refusal)
        except TypeError:
            if _fits(handler, function, args, options):
                raise
    return _table[Divided](function, args, kwargs, reason)  # `gathering` registers it


def _fits(handler: Handler, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a handler takes these arguments."""
    try:
        inspect.signature(handler).bind(function, *args, **kwargs)
    except TypeError:
        return False
    return True


def _compare_whole(function: Any, args: Sequence[Any]) -> None:
    """Raise DivergedError, on every rank, if whole tensors next to a divided one differ between ranks."""
    divided, whole = None, []
    for arg in args:
        # A divided tensor is looked for first, because any other question for its class takes long.
        for value in (arg,) if isinstance(arg, Divided) or not isinstance(arg, list | tuple) else arg:
            if isinstance(value, Divided):
                divided = value if divided is None else divided
            elif isinstance(value, Tensor):
                whole.append(value)
    if divided is not None and whole:
        compare(name_of(function), whole, divided.division.sharing)


def logical_tensors(tree: Any) -> list[Any]:
    """Return the tensors among arguments or results, which may be nested, divided ones as they are."""
    leaves = pytree.tree_leaves(tree, is_leaf=lambda leaf: isinstance(leaf, Divided))
    return [leaf for leaf in leaves if isinstance(leaf, Divided | Tensor)]


def local_shape(shape: Sequence[int], division: Division) -> tuple[int, ...]:
    """Return the shape of this rank's part of a tensor."""
    result = list(shape)
    for axis, owners in division.axes:
        result[axis] = owners.own(shape[axis]).size
    return tuple(result)


def handles(*functions: Any) -> Callable[[AnyHandler], AnyHandler]:
    """Register a handler for functions. It is called as `handler(function, *args, **kwargs)`.

    A name stands for all functions that PyTorch has under it. If the handler's first argument is annotated as
    Divided, calls with a whole first tensor run on gathered tensors.
    """
    names = {name for name in functions if isinstance(name, str)}
    handled = {*functions, *functions_named(*names)} - names

    def register(handler: AnyHandler) -> AnyHandler:
        _table.update(dict.fromkeys(handled, handler))
        if list(inspect.get_annotations(handler).values())[1:2] == [Divided]:
            _of_divided.add(handler)
        return handler

    return register


def functions_named(*names: str) -> set[Any]:
    """Return all functions that PyTorch has under any of these names."""
    places = torch, torch.nn.functional, Tensor, torch._C._nn
    functions = {getattr(place, name, None) for place in places for name in names}
    return functions - {None}


def axis_of(x: Divided, axis: int) -> int:
    """Return an axis as a number from 0. Raises UsageError."""
    if not -x.dim() <= axis < x.dim():
        raise UsageError(f"axis {axis} is not one of the {x.dim()} axes of {x}")
    return axis % x.dim()


def axes_of(x: Divided, dim: Any) -> list[int]:
    """Return the axes that an argument of PyTorch names: one, several, or with None or () all."""
    if dim is None or dim == ():
        return list(range(x.dim()))
    return [axis_of(x, axis) for axis in (dim if isinstance(dim, Sequence) else [dim])]


def _operator_method(name: str) -> Any:
    function = getattr(Tensor, name)

    def call(self: Divided, *args: Any) -> Any:
        return Divided.__torch_function__(function, (), (self, *args), {})

    return call


_OTHER_OPERATORS = ("__matmul__", "__rmatmul__", "__getitem__", "__setitem__", "__iter__")
for _operator in (*ELEMENTWISE_OPERATORS, *_OTHER_OPERATORS):
    setattr(Divided, _operator, _operator_method(_operator))
Divided.__hash__ = object.__hash__  # type: ignore[method-assign]  # __eq__ compares elements, as a tensor's

pytree.register_pytree_node(
    Divided,
    lambda x: ([x.local], (x.shape, x.division)),
    lambda children, context: Divided(children[0], *context),
    serialized_type_name="mucudnn.torch.spatial.Divided",
)

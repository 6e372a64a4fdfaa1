"""Functions that work on each element, and functions along axes that are not divided."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)
from torch.utils import _pytree as pytree

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import divide_further, gather, redivide, spread, total
from mucudnn.torch.parallel.spatial.divided import Divided, Division, axis_of, handles, spelled
from mucudnn.torch.parallel.spatial.exchange.exchange import add_up, fetch
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.parallel.spatial.windows import Span, product

_ELEMENTWISE = """
abs absolute neg negative exp expm1 log log1p log2 sqrt rsqrt square reciprocal sign sin cos tan tanh atan erf
sigmoid floor ceil round isnan isfinite isinf logical_not nan_to_num clamp clamp_min clamp_max clip
relu relu6 leaky_relu elu selu celu gelu silu mish softplus hardtanh hardswish hardsigmoid logsigmoid softsign
tanhshrink softshrink hardshrink threshold
add sub subtract rsub mul multiply div divide true_divide pow maximum minimum
fmax fmin where lerp addcmul addcdiv fmod
eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_not masked_fill
zeros_like ones_like full_like
type float double half bfloat16 long int bool contiguous clone detach cpu cuda requires_grad_
"""
_DUNDERS = """
add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv pow rpow neg abs
eq ne lt le gt ge and or invert
"""


def _functions() -> list[Any]:
    names = [*_ELEMENTWISE.split(), *(f"__{name}__" for name in _DUNDERS.split())]
    return [function for name in names for function in spelled(name, torch._C._nn)]


def _functions_in_place() -> set[Any]:
    names = [f"{name}_" for name in _ELEMENTWISE.split() if not name.endswith("_")]
    names += [f"__{name}__" for name in _DUNDERS.split() if name[0] == "i" and name != "invert"]
    return {function for name in names for function in spelled(name, torch._C._nn)}


_WRITING = _functions_in_place()  # they change their first argument
_PLAIN = (int, float, str, torch.dtype, torch.device, type(None))


@handles(*_functions(), *_WRITING)
def _elementwise(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs.get("out") is not None:
        raise refuse(function, "into another is not in the table")
    first, *others = args or (None,)
    if isinstance(first, Divided) and all(isinstance(one, _PLAIN) for one in (*others, *kwargs.values())):
        return _with_result(function, first, function(first.local, *others, **kwargs), first.shape)
    leaves, structure = pytree.tree_flatten((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Divided))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Divided)]
    like = _widest(function, tensors)
    shapes = [leaf.shape for leaf in leaves if isinstance(leaf, Divided | Tensor)]
    try:
        shape = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise UsageError(f"tensors of {', '.join(str(tuple(one)) for one in shapes)} do not fit") from None
    if len(shape) != like.dim() or any(shape[axis] != like.shape[axis] for axis in like.divided_axes):
        raise refuse(function, f"with tensors of {', '.join(str(tuple(one)) for one in shapes)}")
    beside = [_beside(leaf, like) for leaf in leaves]
    if function in _WRITING and getattr(leaves[0], "local", None) is not beside[0]:
        raise refuse(function, "in place changes a tensor that is not divided so, which is not in the table")
    args, kwargs = pytree.tree_unflatten(beside, structure)
    return _with_result(function, like, function(*args, **kwargs), shape)


def _with_result(function: Any, like: Divided, result: Any, shape: Sequence[int]) -> Any:
    if isinstance(result, tuple):  # torch.where of a condition alone: the places in this rank's part
        raise refuse(function, "that returns places of elements is not in the table")
    return like.with_local(result, shape) if isinstance(result, Tensor) else result


def _widest(function: Any, tensors: Sequence[Divided]) -> Divided:
    """Return a tensor with the most divided axes, and of these one whose divided axes are the longest.

    The others may have been gathered over some dimensions of the mesh. Raises ArgumentTypeError for tensors
    that are divided in different ways.
    """
    like = tensors[0]
    for x in tensors:
        if len(x.division.axes) > len(like.division.axes):
            like = x
    for x in tensors:
        if x.division != like.division:
            continue
        if any(x.shape[axis] > like.shape[axis] for axis in like.divided_axes if axis < x.dim()):
            like = x
    if any(x.dim() != like.dim() or not _is_gathered(x.division, like.division) for x in tensors):
        raise refuse(function, "with tensors that are divided in different ways is not in the table")
    return like


def _is_gathered(division: Division, original: Division) -> bool:
    """Return whether a division is the original, or what gathering over some dimensions leaves of it."""
    return division == original or division == original.keeping(division.names)


def _beside(leaf: Any, like: Divided) -> Any:
    """Return the part of an operand that meets this rank's part of `like`."""
    if isinstance(leaf, Divided):
        if leaf.division != like.division and all(leaf.shape[a] == like.shape[a] for a in like.divided_axes):
            leaf = divide_further(leaf, like.division)
        if all(leaf.shape[axis] == like.shape[axis] for axis in like.divided_axes):
            return leaf.local
        leaf = gather(leaf)  # an axis of length one, of which the first rank has the only row
    return spread(leaf, like) if isinstance(leaf, Tensor) and leaf.dim() else leaf


@handles(Tensor.to, Tensor.type_as)
def _converted(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a tensor with the type and device of another, or those that are named."""
    x, *others = args
    others = [one.local if isinstance(one, Divided) else one for one in others]
    kwargs = {name: one.local if isinstance(one, Divided) else one for name, one in kwargs.items()}
    if not isinstance(x, Divided):
        return function(x, *others, **kwargs)
    return x.with_local(function(x.local, *others, **kwargs))


@handles(*spelled("prelu"))
def _prelu(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, *others = args
    return x.with_local(function(x.local, *others, **kwargs))


def _along_one_axis(x: Divided, function: Any, given: Any) -> int:
    if not isinstance(given, int):
        raise refuse(function, f"along {given!r} is not in the table")
    axis = axis_of(x, given)
    if axis in x.divided_axes:
        raise refuse(function, f"along axis {axis}, which is divided, is not in the table")
    return axis


@handles(*spelled("softmax"), *spelled("log_softmax"), *spelled("cumsum"), *spelled("logsumexp"))
def _softmax(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, rest = args[0], args[1:]
    _along_one_axis(x, function, rest[0] if rest else kwargs.get("dim"))
    found = function(x.local, *rest, **kwargs)
    if found.dim() != x.dim():
        raise refuse(function, "without keepdim=True is not in the table")
    return x.with_local(found, _resized(x, found))


def _resized(x: Divided, local: Tensor) -> list[int]:
    """Return the shape of the whole whose undivided axes are as long as those of `local`."""
    return [x.shape[i] if i in x.divided_axes else local.size(i) for i in range(x.dim())]


@handles(F.glu)
def _glu(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, dim = args[0], (args[1:] or (kwargs.get("dim", -1),))[0]
    found = function(x.local, _along_one_axis(x, function, dim))
    return x.with_local(found, _resized(x, found))


@handles(F.normalize)
def _normalize(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(x: Divided, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Divided:
        if out is not None:
            raise refuse(function, "into another is not in the table")
        return x.with_local(function(x.local, p, _along_one_axis(x, function, dim), eps))

    return call(*args, **kwargs)


@handles(*spelled("amax"), *spelled("amin"), *spelled("var"), *spelled("std"))
def _over_whole_axes(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, rest = args[0], args[1:]
    given = kwargs.get("dim", rest[0] if rest else None)
    axes = given if isinstance(given, Sequence) else [given]
    for axis in axes:
        _along_one_axis(x, function, axis)
    found = function(x.local, *rest, **kwargs)
    if found.dim() != x.dim():
        raise refuse(function, "without keepdim=True is not in the table")
    return x.with_local(found, _resized(x, found))


@handles(*spelled("cat"), *spelled("concat"), *spelled("concatenate"))
def _cat(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None) -> Divided:
        like = _widest(function, [x for x in tensors if isinstance(x, Divided)])
        along = _along_one_axis(like, function, dim if axis is None else axis)
        shapes = {tuple(n for i, n in enumerate(x.shape) if i != along) for x in tensors}
        if len(shapes) > 1:
            raise UsageError(f"tensors of {', '.join(str(tuple(x.shape)) for x in tensors)} do not fit")
        found = torch.cat([_beside(x, like) for x in tensors], along)
        return like.with_local(found, _resized(like, found))

    return call(*args, **kwargs)


@handles(*spelled("chunk"), *spelled("split"), *spelled("unbind"))
def _split(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Divided, ...]:
    x, rest = args[0], args[1:]
    takes_axis_first = getattr(function, "__name__", "") == "unbind"
    dim = kwargs.get("dim", (rest[0 if takes_axis_first else 1 :] or (0,))[0])
    _along_one_axis(x, function, dim)
    if takes_axis_first:
        raise refuse(function, "is not in the table")
    return tuple(x.with_local(one, _resized(x, one)) for one in function(x.local, *rest, **kwargs))


@handles(*spelled("narrow"))
def _narrow(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(x: Divided, dim: int, start: int, length: int) -> Any:
        index = [slice(None)] * axis_of(x, dim) + [slice(start, start + length)]
        return _item(function, (x, tuple(index)), {})

    return call(*args, **kwargs)


@handles(Tensor.__getitem__)
def _item(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, given = args
    index = list(given if isinstance(given, tuple) else (given,))
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index[at : at + 1] = [slice(None)] * (x.dim() - len(index) + 1)
    if not all(isinstance(one, slice) for one in index) or len(index) > x.dim():
        raise refuse(function, f"[{given!r}] takes other things than slices, which is not in the table")
    local, shape = x.local, list(x.shape)
    for axis, cut in enumerate(index):
        lo, hi, step = cut.indices(x.shape[axis])
        if step < 1:
            raise refuse(function, "takes a step below 1, which is not in the table")
        shape[axis] = len(range(lo, hi, step))
        if axis not in x.divided_axes or shape[axis] == x.shape[axis]:
            local = local[(slice(None),) * axis + (cut,)]
            continue
        target = Divided(local, shape, x.division).parts(axis)
        windows = [
            Span(lo + o.lo * step, lo + (o.hi - 1) * step + 1) if o.size else Span(0, 0) for o in target
        ]
        local = fetch(local, axis, x.parts(axis), windows, x.owners(axis))
        local = local[(slice(None),) * axis + (slice(None, None, step),)]
    return x.with_local(local, shape)


@handles(*spelled("permute"))
def _permute(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, *order = args
    order = list(kwargs.get("dims", order))
    if len(order) == 1 and isinstance(order[0], Sequence):
        order = list(order[0])
    return _permuted(x, [axis_of(x, axis) for axis in order])


@handles(*spelled("transpose"), *spelled("swapaxes"))
def _transpose(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(x: Divided, dim0: int, dim1: int) -> Divided:
        order = list(range(x.dim()))
        one, two = axis_of(x, dim0), axis_of(x, dim1)
        order[one], order[two] = two, one
        return _permuted(x, order)

    return call(*args, **kwargs)


def _permuted(x: Divided, order: Sequence[int]) -> Divided:
    division = x.division.on_axes([list(order).index(axis) for axis in x.divided_axes])
    return Divided(x.local.permute(list(order)), [x.shape[axis] for axis in order], division)


@handles(*spelled("unsqueeze"))
def _unsqueeze(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(x: Divided, dim: int) -> Divided:
        at = dim % (x.dim() + 1)
        shape = [*x.shape[:at], 1, *x.shape[at:]]
        division = x.division.on_axes([axis + (axis >= at) for axis in x.divided_axes])
        return Divided(x.local.unsqueeze(at), shape, division)

    return call(*args, **kwargs)


@handles(*spelled("squeeze"))
def _squeeze(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(x: Divided, dim: Any = None) -> Divided:
        at = _along_one_axis(x, function, dim)
        if x.shape[at] != 1:
            return x
        division = x.division.on_axes([axis - (axis > at) for axis in x.divided_axes])
        return Divided(x.local.squeeze(at), [n for i, n in enumerate(x.shape) if i != at], division)

    return call(*args, **kwargs)


@handles(*spelled("flatten"))
def _flatten(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(x: Divided, start_dim: int = 0, end_dim: int = -1) -> Any:
        start, end = axis_of(x, start_dim), axis_of(x, end_dim)
        shape = [*x.shape[:start], product(x.shape[start : end + 1]), *x.shape[end + 1 :]]
        return _reshaped(x, shape)

    return call(*args, **kwargs)


@handles(*spelled("reshape"), *spelled("view"))
def _reshape(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, *shape = args
    shape = list(kwargs.get("shape", kwargs.get("size", shape)))
    if len(shape) == 1 and isinstance(shape[0], Sequence):
        shape = list(shape[0])
    if not all(isinstance(n, int) for n in shape):
        raise refuse(function, "into another data type is not in the table")
    if shape.count(-1) == 1:
        known = -product(shape)
        shape[shape.index(-1)] = x.numel() // known if known else 0
    if product(shape) != x.numel():
        raise UsageError(f"a tensor of {tuple(x.shape)} cannot have the shape {tuple(shape)}")
    return _reshaped(x, shape)


def _reshaped(x: Divided, shape: list[int]) -> Any:
    """Return a divided tensor if its divided axes stay; else the whole tensor in the new shape.

    The axes from the first divided one to the last axis must stay. Any other reshaping mixes rows of several
    ranks, so the tensor is gathered: this is the place at which a network leaves its divided part.
    """
    kept = x.dim() - x.divided_axes[0]
    if len(shape) > kept and list(shape[-kept:]) == list(x.shape[-kept:]):
        more = len(shape) - x.dim()
        division = x.division.on_axes([axis + more for axis in x.divided_axes])
        found = x.local.reshape(*shape[:-kept], *x.local.shape[-kept:])
        return Divided(found, shape, division)
    return gather(x).reshape(shape)


@handles(F.linear)
def _linear(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(input: Divided, weight: Tensor, bias: Tensor | None = None) -> Divided:
        if input.dim() - 1 in input.divided_axes:
            raise refuse(function, "whose last axis is divided is not in the table")
        return input.with_local(F.linear(input.local, weight, bias), [*input.shape[:-1], weight.size(0)])

    return call(*args, **kwargs)


@handles(F.layer_norm, torch.layer_norm)
def _layer_norm(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, shape, *rest = args if len(args) > 1 else (*args, kwargs.pop("normalized_shape"))
    if any(axis >= x.dim() - len(shape) for axis in x.divided_axes):
        raise refuse(function, f"over the axes {tuple(shape)}, one of which is divided, is not in the table")
    return x.with_local(function(x.local, shape, *rest, **kwargs))


@handles(F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits)
def _pointwise_loss(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    reduction = kwargs.pop("reduction", "mean")
    given = {name: value for name, value in kwargs.items() if value is not None}
    if len(args) != 2 or {"size_average", "reduce", "weight", "pos_weight"} & given.keys():
        raise refuse(function, "with these arguments is not in the table")
    each = _elementwise(function, args, given | {"reduction": "none"})
    return _reduced_loss(each, reduction, each.numel())


@handles(F.cross_entropy)
def _cross_entropy(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(
        input: Divided, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
        reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> Any:  # fmt: skip
        if weight is not None or not isinstance(input, Divided) or 1 in input.divided_axes:
            raise refuse(function, "with weights of classes is not in the table")
        division = input.division.on_axes([axis - 1 for axis in input.divided_axes])
        shape = [input.shape[0], *input.shape[2:]]
        if isinstance(target, Tensor):
            target = redivide(target, division)
        if target.division != division or list(target.shape) != shape:
            raise UsageError(f"the target is {target}, and has to be {tuple(shape)} with the same division")
        each = F.cross_entropy(
            input.local, target.local, ignore_index=ignore_index, reduction="none",
            label_smoothing=label_smoothing,
        )  # fmt: skip
        counted = (target.local != ignore_index).sum()
        return _reduced_loss(Divided(each, shape, division), reduction, add_up(counted, division.groups))

    return call(*args, **kwargs)


def _reduced_loss(each: Divided, reduction: str, count: Any) -> Any:
    if reduction == "none":
        return each
    return total(each) / count if reduction == "mean" else total(each)

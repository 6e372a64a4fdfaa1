"""The operands of mucudnn's operators, made from the arguments of PyTorch's functions and modules."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mucudnn.arrays.call import PassCall, PlanOrPath, geometry, limit_of
from mucudnn.arrays.dispatch import Prepared
from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.sizes import spell_limit
from mucudnn.torch.operators import passes
from mucudnn.torch.operators.derivatives import convolve
from mucudnn.torch.operators.formats import channels_last_results
from mucudnn.torch.operators.options import Options, handle_of

Sizes = int | Sequence[int]


class Operands(NamedTuple):
    """The arguments of the operator `forward`.

    `x` has a batch axis; `batched` is False if the caller's input had none. The tensors have the types that
    autocast requires. The padding in `options` is the same on both sides of an axis. `ready` is the division
    that runs them, if it is already known.
    """

    x: Tensor
    w: Tensor
    bias: Tensor | None
    options: Options
    batched: bool = True
    ready: Prepared | None = None

    def are(self, x: Tensor, w: Tensor, bias: Tensor | None) -> bool:
        """Return whether the operands are these tensors themselves, neither cast nor padded."""
        return self.batched and self.x is x and self.w is w and self.bias is bias

    def calls(self, passes_: Iterable[str]) -> dict[str, PassCall]:
        """Return the call of each pass, by pass. Raises MucudnnError."""
        vx, vw = passes.views("input", self.x, "weight", self.w, self.options)
        forward = passes.call_of("forward", vx, vx.shape, vw.shape, None, self.options)
        y = geometry(forward)[1]["y"]
        return {p: forward if p == "forward" else forward._replace(pass_=p, y=y) for p in passes_}

    def run(self) -> Tensor:
        """Run the convolution, and return its result without a batch axis if the caller's input had none."""
        y = convolve("forward", self.x, self.w, self.bias, self.options, self.ready)
        return y if self.batched else y.squeeze(0)


def prepare_operands(
    dims: int, x: Tensor, w: Tensor, bias: Tensor | None, stride: Sizes, padding: str | Sizes,
    dilation: Sizes, groups: int, *, workspace: int | str | None, plan: PlanOrPath | None, fallback: bool,
    promise: str | None = None, constant_filter: bool = False,
) -> Operands:  # fmt: skip
    """Bring the arguments of `conv1d`, `conv2d` or `conv3d` into the operator's form.

    `dims` is the number of spatial axes. With `constant_filter` the weight may be kept in the algorithms' own
    form, unless autocast casts it. With `fallback` the operator warns and runs PyTorch's own
    convolution instead of raising. Raises UsageError, ArgumentTypeError.
    """
    for name, tensor in (("input", x), ("weight", w)):
        if not isinstance(tensor, Tensor):
            raise ArgumentTypeError(f"{name} is {type(tensor).__name__}, not a tensor")
        if tensor.layout is not torch.strided:
            raise UsageError(f"{name} is sparse: make it dense with to_dense()")
    if w.dim() != dims + 2 or x.dim() not in (dims + 1, dims + 2):
        raise UsageError(
            f"conv{dims}d takes an input of {dims + 2} axes, or {dims + 1} without the batch, and a weight "
            f"of {dims + 2}: input has {x.dim()}, weight {w.dim()}"
        )
    own_w = w
    x, w, bias = autocast(x, w, bias)
    batched = x.dim() == dims + 2
    if not batched:
        x = x.unsqueeze(0)
    strides, dilations = _per_axis("stride", stride, dims), _per_axis("dilation", dilation, dims)
    if padding == "same":
        if any(size != 1 for size in strides):
            raise UsageError(f"padding='same' needs a stride of 1, not {stride}")
        total = [d * (k - 1) for d, k in zip(dilations, w.shape[2:], strict=True)]
        paddings = tuple(size // 2 for size in total)
        if any(size % 2 for size in total):  # a copy with an additional zero at the end of these axes
            x = torch.nn.functional.pad(x, [pad for size in reversed(total) for pad in (0, size % 2)])
    elif isinstance(padding, str):
        if padding != "valid":
            raise UsageError(f"padding is {padding!r}: there are 'valid' and 'same', and numbers")
        paddings = (0,) * dims
    else:
        paddings = _per_axis("padding", padding, dims)
    if bias is not None and not fallback:
        passes.check_bias(bias, w)
    exact = passes.is_plain(x) and passes.is_plain(w) and not torch.compiler.is_compiling()
    last = channels_last_results(x, w, bias, strides, paddings, dilations, groups, exact=exact)
    options = Options(
        strides, paddings, dilations, groups, last, spelled(workspace), handle_of(plan), fallback, promise,
        constant_filter and w is own_w,
    )  # fmt: skip
    return Operands(x, w, bias, options, batched)


def spelled(workspace: int | str | None) -> str | None:
    """Return a limit as text for the operator. Raises UsageError, ArgumentTypeError."""
    return None if workspace is None else spell_limit(limit_of(workspace))


def _per_axis(name: str, value: Sizes, dims: int) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(sizes) == 1:
        return sizes * dims
    if len(sizes) != dims:
        raise UsageError(f"{name} has {len(sizes)} sizes, the input has {dims} spatial axes")
    return sizes


def autocast(x: Tensor, w: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Cast the tensors, except f64 ones, to the type of autocast, as PyTorch does for its convolutions."""
    kind = x.device.type
    # torch.amp.is_autocast_available() cannot be compiled under PyTorch 2.9.
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return x, w, bias
    dtype = torch.get_autocast_dtype(kind)

    def cast(tensor: Tensor) -> Tensor:
        eligible = tensor.is_floating_point() and tensor.dtype is not torch.float64
        return tensor.to(dtype) if eligible else tensor

    return cast(x), cast(w), None if bias is None else cast(bias)

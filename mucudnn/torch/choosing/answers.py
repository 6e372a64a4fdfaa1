"""The memory of decided calls: equal calls have the same key, and the key finds who runs them."""

import os
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor

from mucudnn import settings
from mucudnn.arrays.dispatch import Prepared
from mucudnn.arrays.recent import Recent
from mucudnn.torch.operators import passes, stock
from mucudnn.torch.operators.operands import Sizes
from mucudnn.torch.operators.options import Options
from mucudnn.torch.operators.stock import TorchSource

_LIMIT = settings.WORKSPACE_LIMIT.variable
_new = tuple.__new__  # the constructor of a NamedTuple is a Python function, which takes longer


class CallKey(NamedTuple):
    """The values that the answer about a call with all its passes depends on."""

    caller: Any  # the settings of a converted module, or the number of axes and the plan of a function
    stride: Sizes
    padding: str | Sizes
    dilation: Sizes
    groups: int
    padding_mode: str
    x: Size
    x_strides: tuple[int, ...]
    data_type: torch.dtype
    device: str
    w: Size
    w_strides: tuple[int, ...]
    w_data_type: torch.dtype
    bias: tuple[Size, torch.dtype] | None
    needed: tuple[bool, bool, bool]  # True for the gradients that x, w and the bias may get
    autocast: torch.dtype | None  # the type that autocast wants
    limit: int | str | None  # the workspace limit
    source: TorchSource  # PyTorch with its flags and threads

    def text(self) -> str:
        """Return a text that is equal for equal calls in any process, without the machine."""
        return repr(
            {name: value for name, value in self._asdict().items() if name not in ("caller", "source")}
        )


class Answer(NamedTuple):
    """The decision that PyTorch's own convolution runs a call, or that mucudnn's passes do."""

    gain: float  # the share of the time of PyTorch's passes that ours save; 0 if PyTorch runs the call
    options: Options | None = None  # None if the call's tensors must be cast or padded before a pass
    ready: Prepared | None = None  # the division of the forward pass on a CPU


LEFT_TO_PYTORCH = Answer(0.0)
_answers: Recent[CallKey, Answer] = Recent(2048)  # an entry takes about 2 KB


def find(key: CallKey) -> Answer | None:
    """Return the answer about a call; None while it is undecided."""
    try:
        return _answers[key]
    except TypeError:  # a size that cannot be hashed
        return None


def keep(key: CallKey, answer: Answer) -> None:
    """Keep the answer about a call."""
    with suppress(TypeError):
        _answers[key] = answer


def key_of(
    x: Tensor, w: Tensor, bias: Tensor | None, workspace: int | str | None, caller: Any,
    stride: Sizes, padding: str | Sizes, dilation: Sizes, groups: int, padding_mode: str = "zeros",
) -> CallKey | None:  # fmt: skip
    """Return the key of a call.

    Return None for a call that a compiler or a tracer follows, and for tensors that are not strided.
    """
    # Each call of a converted model pays for these lines, so they avoid calls of Python functions.
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return None
    if type(x) not in passes.PLAIN or type(w) not in passes.PLAIN or not (x.is_cpu or x.is_cuda):
        return None
    device = "cpu" if x.is_cpu else str(x.device)
    kind = "cpu" if x.is_cpu else "cuda"
    needed = False, False, False
    if torch.is_grad_enabled():
        needed = x.requires_grad, w.requires_grad, bias is not None and bias.requires_grad
    try:
        values = (
            caller, stride, padding, dilation, groups, padding_mode,
            x.shape, x.stride(), x.dtype, device, w.shape, w.stride(), w.dtype,
            None if bias is None else (bias.shape, bias.dtype), needed,
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
            os.environ.get(_LIMIT) if workspace is None else workspace, stock.source_of(device),
        )  # fmt: skip
    except RuntimeError:  # nested and compressed sparse tensors have no shape or no strides
        return None
    return _new(CallKey, values)

"""The answers about decided calls: PyTorch or mucudnn. Equal calls have equal keys."""

import itertools
import os
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Size, Tensor

from mucudnn import settings
from mucudnn.arrays.dispatch import Prepared
from mucudnn.arrays.recent import Recent
from mucudnn.promises import FIXED, promise_named
from mucudnn.torch.operators import passes, stock
from mucudnn.torch.operators.operands import Operands, Sizes
from mucudnn.torch.operators.options import Options
from mucudnn.torch.operators.stock import TorchSource

_LIMIT = settings.WORKSPACE_LIMIT.variable
_new = tuple.__new__  # faster than the constructor of a NamedTuple, a Python function


class CallKey(NamedTuple):
    """Everything that the answer about a call, with all its passes, depends on."""

    caller: Any  # the settings of a converted module, or the number of axes and the plan of a function
    stride: Sizes
    padding: str | Sizes
    dilation: Sizes
    groups: int
    x: Size
    x_strides: tuple[int, ...]
    data_type: torch.dtype
    device: str
    w: Size
    w_strides: tuple[int, ...]
    w_data_type: torch.dtype
    bias: tuple[Size, torch.dtype] | None
    needed: tuple[bool, bool, bool]  # True for each of x, w and bias that may get a gradient
    autocast: torch.dtype | None  # the type that autocast casts to
    limit: int | str | None  # the workspace limit
    source: TorchSource  # PyTorch with its flags and threads
    constant_filter: bool  # True if w may be kept in the algorithms' own form

    def text(self) -> str:
        """Return a text that equal calls share in any process and on any machine."""
        return repr(
            {name: value for name, value in self._asdict().items() if name not in ("caller", "source")}
        )


def passes_of(key: CallKey) -> list[str]:
    """Return `forward`, and the backward passes whose gradients the call may need."""
    return ["forward", *itertools.compress(("backward_data", "backward_filter"), key.needed)]


class Answer(NamedTuple):
    """The decision whether PyTorch's own convolution or mucudnn's passes run a call."""

    gain: float  # the share of PyTorch's time that our passes save; 0 if PyTorch runs the call
    options: Options | None = None  # None if a pass needs cast or padded tensors
    ready: Prepared | None = None  # the division of the forward pass on a CPU
    is_final: bool = True  # False if the call is undecided, and PyTorch runs it for now
    is_divided: bool = False  # True if our passes divide the mini-batch, the channels or the samples
    is_busy: bool = False  # True if other programs disturbed a measurement that it depends on

    def applied(self, operands: Operands) -> Operands:
        """Return the operands with the options that our passes run a call with.

        While the call is undecided, a model of the costs chooses.
        """
        if not self.is_final:
            promise = promise_named(operands.options.promise)._replace(choice=FIXED)
            return operands._replace(options=operands.options._replace(promise=str(promise)))
        return operands


LEFT_TO_PYTORCH = Answer(0.0)
NOT_YET = Answer(0.0, is_final=False)
MODELLED = Answer(1.0, is_final=False)
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
    stride: Sizes, padding: str | Sizes, dilation: Sizes, groups: int, constant_filter: bool = False,
) -> CallKey | None:  # fmt: skip
    """Return the key of a call; None under a compiler or a tracer, and for tensors that are not strided."""
    # Every call in a converted model runs these lines, so they avoid calls to Python functions.
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
            caller, stride, padding, dilation, groups,
            x.shape, x.stride(), x.dtype, device, w.shape, w.stride(), w.dtype,
            None if bias is None else (bias.shape, bias.dtype), needed,
            torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None,
            os.environ.get(_LIMIT) if workspace is None else workspace, stock.source_of(device),
            constant_filter,
        )  # fmt: skip
    except RuntimeError:  # nested and compressed sparse tensors have no shape or no strides
        return None
    return _new(CallKey, values)

"""`conv1d`, `conv2d` and `conv3d` with the arguments of `torch.nn.functional` and a workspace limit."""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from mucudnn.arrays.call import PlanOrPath
from mucudnn.errors import UsageError
from mucudnn.promises import Promise, promise_of
from mucudnn.torch.choosing import answers, sightings
from mucudnn.torch.choosing.decision import decide
from mucudnn.torch.operators.derivatives import convolve
from mucudnn.torch.operators.operands import Sizes, prepare_operands
from mucudnn.torch.operators.options import handle_of

Function = TypeVar("Function", bound=Callable[..., Tensor])


def _unscriptable(function: Function) -> Function:
    """Make `torch.jit.script` raise a UsageError with advice for this function."""

    def refuse() -> NoReturn:
        name = function.__name__
        raise UsageError(
            f"torch.jit.script cannot compile mucudnn.torch.{name}: use torch.nn.functional.{name} there, "
            "or torch.jit.trace"
        )

    function.__prepare_scriptable__ = refuse  # type: ignore[attr-defined]
    return function


@_unscriptable
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
    numerics: str | None = None,
    batch_invariant: bool | None = None,
    choice: str | None = None,
) -> Tensor:
    """Return a convolution of signals, (N, C, L) or (C, L); everything else is as in `conv2d`."""
    sizes = stride, padding, dilation, groups
    words = numerics, batch_invariant, choice
    return _convolve(conv1d, (input, weight, bias), sizes, workspace, plan, words)


@_unscriptable
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
    numerics: str | None = None,
    batch_invariant: bool | None = None,
    choice: str | None = None,
) -> Tensor:
    """Return a convolution of images, (N, C, H, W) or (C, H, W), as `torch.nn.functional.conv2d` does.

    `weight` is (K, C / groups, R, S), `bias` is (K) and the result is (N, K, H', W'). `padding` may be
    'valid' or 'same'. Types are f32, f64, f16 and bf16. Memory formats are contiguous and channels_last, and
    tensors in other formats are copied. The result and the gradients have the same strides as PyTorch's.

    The function is differentiable to any order, in reverse and in forward mode. It also works under autocast,
    `torch.compile` and the transforms of `torch.func` (grad, vjp, jvp, vmap, jacrev, jacfwd, hessian), in
    which, as in forward mode, PyTorch's own convolution runs without a limit or a plan. Before you compile a
    call with a Plan, make an uncompiled call with it, or pass the plan's path instead.

    Each pass uses at most `workspace` bytes of scratch memory ("64MiB", "none"), or runs as the `plan` says.
    Without either, the limit is MUCUDNN_WORKSPACE_LIMIT, or 64 MiB. With `numerics` "strict" each result is a
    sum over its own window: neither FFT nor Winograd nor TF32 runs. The default is MUCUDNN_NUMERICS, or
    "fast". The second call with a shape takes up to seconds to measure the algorithms that fit, and the cache
    keeps the measurements. Unless the cache has them already, PyTorch runs the first call, or a model of the
    costs chooses what runs if you name a limit or a promise, which PyTorch would not keep. On the CPU the
    convolution uses MUCUDNN_THREADS threads, or else as many as PyTorch (`torch.set_num_threads`).

    Raises UsageError (a ValueError) and ArgumentTypeError (a TypeError) for arguments that make no
    convolution. Raises MixedDevicesError, NoEngineError and NothingFitsError, which are RuntimeErrors. All
    are MucudnnErrors.
    """
    sizes = stride, padding, dilation, groups
    words = numerics, batch_invariant, choice
    return _convolve(conv2d, (input, weight, bias), sizes, workspace, plan, words)


@_unscriptable
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: str | Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    *,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
    numerics: str | None = None,
    batch_invariant: bool | None = None,
    choice: str | None = None,
) -> Tensor:
    """Return a convolution of volumes, (N, C, D, H, W) or (C, D, H, W); everything else is as in `conv2d`."""
    sizes = stride, padding, dilation, groups
    words = numerics, batch_invariant, choice
    return _convolve(conv3d, (input, weight, bias), sizes, workspace, plan, words)


_AXES: dict[Any, int] = {conv1d: 1, conv2d: 2, conv3d: 3}


def _convolve(
    function: Any, tensors: tuple[Tensor, Tensor, Tensor | None], sizes: tuple[Any, ...],
    workspace: int | str | None, plan: PlanOrPath | None, words: tuple[Any, Any, Any],
) -> Tensor:  # fmt: skip
    """Run a function of this module with mucudnn's operators or PyTorch's own.

    `words` are numerics, batch_invariant and choice; they promise what the process does if all are None.
    """
    (x, w, bias), promise = tensors, None if words == (None, None, None) else promise_of(*words)
    if has_torch_function_variadic(x, w, bias):
        return overridden(function, x, w, bias, *sizes, workspace, plan, promise)
    dims = _AXES[function]
    key = answer = None
    if isinstance(x, Tensor) and isinstance(w, Tensor):
        if list in [*map(type, sizes)]:  # a list cannot be hashed
            sizes = tuple(tuple(size) if type(size) is list else size for size in sizes)
        caller = dims if plan is None and promise is None else (dims, promise, handle_of(plan))
        key = answers.key_of(x, w, bias, workspace, caller, *sizes)
        answer = None if key is None else answers.find(key)  # compiled code has no key
    if answer is not None and answer.options is not None:
        return convolve("forward", x, w, bias, answer.options, answer.ready)
    if answer is None or answer.gain:
        operands = prepare_operands(
            dims, x, w, bias, *sizes, workspace=workspace, plan=plan, fallback=False,
            promise=None if promise is None else str(promise),
        )  # fmt: skip
        if answer is None and key is not None:
            layer = id(w) if isinstance(w, torch.nn.Parameter) else w.shape  # other weights may be computed
            answer = decide(key, operands, operands.are(x, w, bias), sightings.of_functions, layer)
        if answer is None or answer.gain:
            return (answer.applied(operands) if answer else operands).run()
    run_stock: Callable[..., Tensor] = getattr(torch.nn.functional, function.__name__)
    return run_stock(x, w, bias, *sizes)


class DividedInput:
    """A base class of inputs that are divided over ranks, whose `__torch_function__` runs the functions.

    Converted modules pass such an input to the functions of this module, with their limit and plan. Other
    objects with `__torch_function__` know only PyTorch's own functions, so converted modules use those.
    """


def check_promise_of_divided(promise: Promise) -> None:
    """Raise UsageError if the bits of a sample may not depend on its division over ranks."""
    if promise.batch_invariant:
        raise UsageError("a divided sample has other bits than a whole one: leave batch_invariant out")


def overridden(function: Any, input: Any, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Any:
    """Let the `__torch_function__` of an argument or of a mode run a function of this module."""
    *sizes, workspace, plan, promise = arguments
    engine = {"workspace": workspace, "plan": plan, **({} if promise is None else promise._asdict())}
    return handle_torch_function(function, (input, weight, bias), input, weight, bias, *sizes, **engine)

"""The names of PyTorch that are not public, each with the reason for its use.

They were read and tested in PyTorch 2.9 to 2.13. Those of Inductor and Dynamo, which only programs that
compile import, are in `compiling.inductor`. Attributes of PyTorch's own layers stand where they are used.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.autograd import (
    ProfilerConfig,
    ProfilerState,
    _disable_profiler_legacy,
    _enable_profiler_legacy,
    forward_ad,
)
from torch.utils._python_dispatch import TorchDispatchMode, is_in_torch_dispatch_mode
from torch.utils._pytree import tree_leaves, tree_map

from mucudnn.forks import no_fork

__all__ = [
    "OpOverload",  # the class of operators, whose schema says what they write
    "TorchDispatchMode",  # the only mode that sees each operation, also those within others
    "is_in_torch_dispatch_mode",  # a mode must see our operators, which a direct call would hide
    "tree_leaves",  # the tensors within arguments, in the same containers that PyTorch itself knows
    "tree_map",
]
Function = TypeVar("Function", bound=Callable[..., Any])
_functorch = torch._C._functorch
# The implementation that PyTorch would run for a convolution. It decides on the strides of the results.
select_backend: Callable[..., Any] = torch._C._select_conv_backend
# False for wrappers of tensors, such as those of a transform. The public way is to catch an error.
has_storage: Callable[[Tensor], bool] = torch._C._has_storage
# True while the user's profiler runs: it must see operators, and only one profiler runs in a thread.
is_profiled: Callable[[], bool] = torch.autograd._profiler_enabled
# The flags that decide on the arithmetic of oneDNN's convolutions, as `torch.backends.mkldnn` reads them.
is_mkldnn_enabled: Callable[[], bool] = torch._C._get_mkldnn_enabled
mkldnn_precision: Callable[[str, str], str] = torch._C._get_fp32_precision_getter
# The autograd node that runs in a backward pass, which belongs to the forward step with its number.
current_node: Callable[[], Any] = torch._C._current_autograd_node


def newest_node() -> int:
    """Return the number of the autograd node that was made last."""
    return int(torch.autograd._get_sequence_nr()) - 1


def fake_mode() -> AbstractContextManager[Any]:
    """Return a mode in which tensors have a device but no memory, as autocast needs."""
    with no_fork:
        from torch._subclasses.fake_tensor import FakeTensorMode

    mode: AbstractContextManager[Any] = FakeTensorMode(allow_non_fake_inputs=True)
    return mode


def symbolic_mode(check: Callable[[bool, bool], None]) -> tuple[AbstractContextManager[Any], torch.SymInt]:
    """Return a mode as of `fake_mode`, and a size of two or more in it that has no value.

    Args:
        check: called as a program asks about the size, with True if it wants the value of a number, not the
            truth of a condition, and with True if the answer is the same for all sizes.
    """
    with no_fork:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    evaluate = shapes.evaluate_expr

    def evaluate_expr(expression: Any, *args: Any, **kwargs: Any) -> Any:
        if expression.free_symbols:
            is_known = shapes._maybe_evaluate_static(expression) is not None
            check(not (expression.is_Boolean or expression.is_Relational), is_known)
        return evaluate(expression, *args, **kwargs)

    shapes.evaluate_expr = evaluate_expr
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=shapes)
    example = torch.empty(1009)  # no layer has this size, to which the symbol would be set equal
    context = StatelessSymbolicContext([DimDynamic.DYNAMIC])
    size = mode.from_tensor(example, symbolic_context=context).shape[0]
    return mode, size


def without_fake_mode() -> AbstractContextManager[Any]:
    """Return a context in which tensors have values although a fake mode is active."""
    with no_fork:
        from torch._subclasses.fake_tensor import unset_fake_temporarily

    context: AbstractContextManager[Any] = unset_fake_temporarily()
    return context


def allocations_of(device: str, run: Callable[[], Tensor | None]) -> tuple[Tensor | None, list[int]]:
    """Run a function. Return its result, and the bytes that PyTorch's allocator lends or, below 0, gets back.

    The public profiler traces much else, which disturbs a measurement.
    """
    details = torch._C._profiler._ExperimentalConfig()
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, details))
    try:
        result = run()
    finally:
        threads = _disable_profiler_legacy()
    events = [event for events in threads for event in events if event.kind() == "memory_alloc"]
    usages = [e.cpu_memory_usage() if device == "cpu" else e.cuda_memory_usage() for e in events]
    return result, usages


def keep_result(function: Function) -> Function:
    """Let a compiler call the function while it traces a call of it, and keep the result as a constant.

    This is `torch.compiler.assume_constant_result`, whose import takes 1.3 s, although few programs compile.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@keep_result
def is_transformed() -> bool:
    """Return whether a transform of torch.func (grad, vmap, jvp, ...) or forward mode is active."""
    return _functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0

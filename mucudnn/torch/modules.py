"""`convert` and `restore`: the convolutions of a model, divided in place."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from mucudnn.arrays.dispatch import PlanOrPath, known_plan
from mucudnn.errors import UsageError
from mucudnn.plans.plan import Plan
from mucudnn.torch import functional, ops
from mucudnn.torch.derivatives import is_transformed
from mucudnn.torch.options import handle_of

Model = TypeVar("Model")
_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Choice:
    """What a converted module runs within. It is pickled with the module, and with it a plan as text."""

    def __init__(self, workspace: str | None = None, plan: str | None = None) -> None:
        self.workspace = workspace
        self._plan = plan
        self.handle = None if plan is None else handle_of(Plan.parse(plan))

    def __reduce__(self) -> tuple[type["Choice"], tuple[str | None, str | None]]:
        return Choice, (self.workspace, self._plan)


class _Divided:
    """In front of a module of PyTorch: its convolution runs divided, all else is the module's own."""

    _mucudnn: Choice | None = None  # as it is again where a module was parametrized, and then restored

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        choice = self._mucudnn
        if choice is not None and can_divide(input, weight):
            return functional.run(operands_of(self, input, weight, bias, choice))
        result: Tensor = super()._conv_forward(input, weight, bias)  # type: ignore[misc]  # of the module
        return result

    def __prepare_scriptable__(self: Any) -> Any:
        """Say what to do where `torch.jit.script`, which asks for this method, meets a converted module."""
        if self._mucudnn is None:
            return self
        raise UsageError(
            "torch.jit.script cannot compile a converted model: call mucudnn.torch.restore(model) first, "
            "or use torch.jit.trace"
        )


class Conv1d(_Divided, nn.Conv1d):
    """`torch.nn.Conv1d`, divided."""


class Conv2d(_Divided, nn.Conv2d):
    """`torch.nn.Conv2d`, divided."""


class Conv3d(_Divided, nn.Conv3d):
    """`torch.nn.Conv3d`, divided."""


_DIVIDED = {nn.Conv1d: Conv1d, nn.Conv2d: Conv2d, nn.Conv3d: Conv3d}
_STOCK = {divided: stock for stock, divided in _DIVIDED.items()}


def convert(model: Model, *, workspace: int | str | None = None, plan: PlanOrPath | None = None) -> Model:
    """Divide the convolutions of a model, in place, and return it.

    Each pass of every nn.Conv1d, 2d and 3d, at any depth, uses at most `workspace` bytes of scratch memory
    ("16MiB", "none"; without it MUCUDNN_WORKSPACE_LIMIT holds), or runs as the `plan` says (of
    `mucudnn.torch.plan`, or the path of one); what the plan does not have, such as a last mini-batch that
    is smaller, runs within `workspace`. Parameters, state_dict, hooks, DistributedDataParallel, pickling
    and copies stay as they were; a pickled model needs mucudnn where it is loaded. Subclasses of these
    modules are left alone; parametrised ones are such, so convert first, and lazy ones until they have run.
    What looks for these very classes, such as quantization and `torch.jit.script`, is for the model restored.
    `torch.jit.trace` and `torch.export` with strict=True keep a model divided, but its plan is known to this
    process alone; `torch.export` without it and ONNX get PyTorch's own convolutions.

    On the CPU convolutions run on as many threads as PyTorch's own (`torch.set_num_threads`), or on
    MUCUDNN_THREADS where that is set. What was measured on one number of threads says nothing about another:
    a new one is measured.

    Under the transforms of `torch.func` and in forward mode the convolutions are divided too. vmap runs one
    larger convolution, which a plan does not know and which runs within `workspace`.

    Nothing is raised later: a convolution that cannot be divided (an empty mini-batch, complex numbers,
    subclasses of tensors, a device without an engine; in a transform that is compiled, or under the capture
    of a CUDA graph) runs as it did before, with a warning where it looked as if it could be.

    Raises UsageError (a ValueError) for a model without convolutions; MucudnnError for a plan that cannot
    be read.
    """
    # What cannot be understood is said now.
    choice = Choice(functional.spelled(workspace), None if plan is None else str(known_plan(plan)))
    for module in convolutions(model):
        module.__class__ = _DIVIDED.get(type(module), type(module))
        module._mucudnn = choice
    return model


def restore(model: Model) -> Model:
    """Undo `convert`, in place, and return the model."""
    modules: Any = model
    for module in modules.modules():
        if isinstance(module, _Divided):
            module.__class__ = _STOCK.get(type(module), type(module))
            module.__dict__.pop("_mucudnn", None)
    return model


def convolutions(model: Any) -> list[Any]:
    """The modules that can be, or are, converted. Raises UsageError where there is none."""
    found = [module for module in model.modules() if type(module) in _DIVIDED or isinstance(module, _Divided)]
    if not found:
        raise UsageError("the model has no nn.Conv1d, nn.Conv2d or nn.Conv3d: there is nothing to divide")
    return found


def can_divide(input: Tensor, weight: Tensor) -> bool:
    """Return whether a convolution looks as if it could be divided.

    One that a CUDA graph captures cannot, as its memory is not ours to hold; nor one that is compiled in a
    transform of `torch.func`, which compilers follow through PyTorch's own operators alone.
    """
    if torch.jit.is_tracing() and torch.onnx.is_in_onnx_export():
        return False
    unknown_sizes = torch.compiler.is_compiling() or torch.jit.is_tracing()
    return (
        all(
            ops.is_plain(tensor)
            and tensor.layout is torch.strided
            and (tensor.is_cpu or tensor.is_cuda)
            and tensor.dtype in _TYPES
            and (unknown_sizes or tensor.numel() > 0)
            for tensor in (input, weight)
        )
        and weight.dim() - input.dim() in (0, 1)  # without the batch
        and (
            not is_transformed()
            if torch.compiler.is_compiling()
            else not (input.is_cuda and torch.cuda.is_current_stream_capturing())
        )
    )


def operands_of(
    module: Any, input: Tensor, weight: Tensor, bias: Tensor | None, choice: Choice
) -> functional.Operands:
    """What a module's forward gives to the operator."""
    padding = module.padding
    if module.padding_mode != "zeros":
        around = module._reversed_padding_repeated_twice
        input, padding = nn.functional.pad(input, around, mode=module.padding_mode), 0
    return functional.operands(
        weight.dim() - 2, input, weight, bias, module.stride, padding, module.dilation, module.groups,
        choice.workspace, choice.handle, fallback=True,
    )  # fmt: skip

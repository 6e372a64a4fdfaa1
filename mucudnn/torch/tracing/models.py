"""Models that a command names: a function of the user's, an ONNX file, or one of torchvision or timm."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from mucudnn.errors import MissingExtraError, MucudnnError, UsageError, shown
from mucudnn.extras import install_command
from mucudnn.problems.network import Network
from mucudnn.problems.sources import Flags
from mucudnn.torch.tracing.recorder import DATA_TYPES
from mucudnn.torch.tracing.trace import trace

_IMAGE = (64, 3, 224, 224)


def trace_model_of(source: str, flags: Flags, shape: tuple[int, ...] | None) -> Network | None:
    """Return the training step of a model, or None if no library has one of this name.

    `source` is `module:function`, whose call without arguments returns the model, an ONNX file, or a name of
    torchvision or timm. `shape` is that of the model's only input; None stands for the usual one. The
    mini-batch, data type and layout of `flags` replace the model's. Raises UsageError.
    """
    try:
        found = _build(source)
    except MucudnnError:
        raise
    except Exception as error:  # the model's own code may raise any error
        text = " ".join(str(error).split())
        raise UsageError(f"{source} makes no model: {type(error).__name__}: {text}") from error
    if found is None:
        return None
    model, usual = found
    shape = shape or usual
    if not shape:
        raise UsageError(f"the input of {source} is not known: give its shape, such as --input 16x3x224x224")
    if flags.batch:
        shape = flags.batch, *shape[1:]
    types = {name: data_type for data_type, name in DATA_TYPES.items()}
    example = torch.empty(shape, device="meta", dtype=types[flags.dtype or "f32"])
    form = torch.contiguous_format
    if flags.layout == "nhwc":
        form = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    network = trace(model.to(dtype=example.dtype, memory_format=form), example.contiguous(memory_format=form))
    return network if flags.math is None else network.with_math(flags.math)


@cache
def _build(source: str) -> tuple[nn.Module, tuple[int, ...] | None] | None:
    """Return a model, and the usual shape of its input."""
    if source.endswith(".onnx"):
        return _read_onnx(source)
    module, _, name = source.partition(":")
    if name:
        sys.path.insert(0, "")
        model = getattr(import_module(module), name)()
        if not isinstance(model, nn.Module):
            raise UsageError(f"{source} returns {shown(model)}, not a torch.nn.Module")
        return model, None
    return next(_find_in_libraries(source), None)


def _find_in_libraries(name: str) -> Iterator[tuple[nn.Module, tuple[int, ...]]]:
    with suppress(Exception):  # not installed, or for another PyTorch
        models: Any = import_module("torchvision.models")
        if name in models.list_models():
            yield models.get_model(name), _IMAGE
    with suppress(Exception):
        timm: Any = import_module("timm")
        if timm.is_model(name):
            model = timm.create_model(name)
            yield model, (_IMAGE[0], *model.default_cfg["input_size"])


def _read_onnx(source: str) -> tuple[nn.Module, tuple[int, ...] | None]:
    if find_spec("onnx2torch") is None:
        raise MissingExtraError(f"{source} needs onnx2torch: {install_command('onnx')}")
    onnx, onnx2torch = import_module("onnx"), import_module("onnx2torch")
    graph = onnx.load(source)
    weights = {weight.name for weight in graph.graph.initializer}
    inputs = [value for value in graph.graph.input if value.name not in weights]
    sizes = [size.dim_value for size in inputs[0].type.tensor_type.shape.dim]
    sizes[:1] = (sizes[0] or _IMAGE[0],)
    return onnx2torch.convert(graph), tuple(sizes) if all(sizes) else None

"""A run of a model that reports each convolution of some layers to a function."""

from collections.abc import Iterable
from typing import Any

import torch

from mucudnn.torch.layers.convert import method_for
from mucudnn.torch.layers.converted import Record
from mucudnn.torch.tracing.compiled import ignored_compiler


def run_once(model: Any, example_input: Any, layers: Iterable[Any], record: Record) -> None:
    """Run the model, calling `record` with each convolution within the layers, and its output.

    The model runs uncompiled, because compiled code would ignore `record`. Its buffers and the random number
    generators keep their state.
    """
    replaced = []
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        for layer in layers:
            name, method = method_for(layer)
            replaced.append((layer, name, vars(layer).get(name)))
            vars(layer)[name] = method(layer, None)
            vars(layer)[name].record = record
        with (
            torch.random.fork_rng({p.device.index for p in model.parameters() if p.is_cuda}),
            ignored_compiler(),
        ):
            model(*(example_input if isinstance(example_input, tuple) else (example_input,)))
    finally:
        for layer, name, before in replaced:
            vars(layer).update({name: before})
            if before is None:
                del vars(layer)[name]
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)

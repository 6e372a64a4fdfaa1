"""`summary`: the choice for each convolution of a converted model, as a table."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import UsageError
from mucudnn.output.table import Tabular
from mucudnn.output.text import milliseconds, shortened
from mucudnn.sizes import format_size
from mucudnn.torch.choosing import answers
from mucudnn.torch.choosing.answers import passes_of
from mucudnn.torch.layers.convert import converted_layers, describe_reach, list_convolutions, weight_size
from mucudnn.torch.layers.converted import (
    CALL_REASON,
    STEPS_REASON,
    Call,
    LayerChoice,
    choice_of_pass,
    operands_of,
    why_stock,
)
from mucudnn.torch.layers.run_once import run_once
from mucudnn.torch.operators import kept_filters, ops
from mucudnn.torch.operators.operands import Operands
from mucudnn.torch.operators.passes import can_divide, needed_passes

_LONGEST = 32  # characters of a layer's name in the text


@dataclass(frozen=True)
class Summary(Tabular):
    """The choices for the convolutions of a model, shown as a table in text and in notebooks."""

    _heads = ("layer", "pass", "kernel", "micro-batches", "predicted ms", "workspace")
    _figures = (False, False, False, False, True, True)
    choices: tuple[LayerChoice, ...]
    kept_filters: int = 0  # the bytes of transformed filters that the layers keep in eval mode
    promise: str = ""  # the text of the promise that the results keep
    reach: str = ""  # the text about the share of the model's convolutions that `convert` reaches

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for choice in self.choices:
            chosen = (choice.micro_batches or "PyTorch's own").replace(" + ", "\n")
            size = "–" if choice.workspace is None else format_size(choice.workspace)
            name = shortened(choice.layer, _LONGEST)
            yield name, choice.pass_, choice.kernel, chosen, milliseconds(choice.time_ms), size

    def _sentences(self) -> Iterator[str]:
        ours = [choice for choice in self.choices if choice.micro_batches is not None]
        divided = sum((choice.parts or 0) > 1 for choice in ours)
        if ours:
            time = sum(choice.time_ms or 0.0 for choice in ours)
            workspace = max(choice.workspace or 0 for choice in ours)
            yield (
                f"{len(ours)} of {len(self.choices)} passes by mucudnn, {divided} of them divided: "
                f"{milliseconds(time)} ms predicted, workspace at most {format_size(workspace)}"
            )
        if ours and not divided:
            yield "None is divided: no division within the limit was faster than the best undivided choice."
        if self.promise:
            yield f"Promised: {self.promise}."
        if busy := sum(choice.is_busy for choice in ours):
            yield f"{busy} of {len(ours)} were measured on a busy machine: later runs measure them again."
        if self.kept_filters:
            yield f"The kept filters of eval mode take {format_size(self.kept_filters)}."
        for reason, count in Counter(choice.reason for choice in self.choices if choice.reason).items():
            yield f"{count} of {len(self.choices)} passes by PyTorch's own convolutions: {reason}"
        if self.reach:
            yield f"{self.reach}."


def summary(model: Any, example_input: Any = None) -> Summary:
    """Return the choice for each convolution of a converted model: `print(mucudnn.torch.summary(model))`.

    Without an example input, the table shows the latest step of the model that was compared with PyTorch's
    own convolutions, which the model does in its first steps. Otherwise the model runs once on
    `example_input` (a tensor, or a tuple of arguments), uncompiled. Its buffers and the random number
    generators keep their state. A kernel that has not run yet is measured and decided now, which may take
    seconds.

    The table has the forward pass of each call of a convolution, and the backward passes whose gradients are
    enabled and needed. After a comparison of whole steps, it shows what runs as its result.

    Predicted times are sums of the micro-batches' times, in milliseconds. The workspace is in bytes in the
    choices, and has a unit in the table. The transformed filters that the layers keep in eval mode take
    memory beyond it.

    Raises UsageError (a ValueError) for a model that is not converted, and without an example input for a
    model that has not compared a step yet.
    """
    layers = converted_layers(model)
    choices: list[LayerChoice] = []
    flops = Counter[Any]()

    def record(call: Call, output: Tensor) -> None:
        name, x = layers[call.module], call.input
        if not can_divide(x, call.weight):
            kernel, reason = f"an input of {tuple(x.shape)}", "such an input cannot be divided"
            choices.append(LayerChoice(name, "forward", kernel, reason=reason))
            return
        operands = operands_of(call, call.module._mucudnn)
        y = output if operands.batched else output.unsqueeze(0)
        choices.extend(_choices(name, operands, y, why_stock(call, operands)))

    def count(module: Any, args: Any, output: Tensor) -> None:
        flops[module] += 2 * output.numel() * (weight_size(module) // module.out_channels)

    if example_input is None:
        choices.extend(_list_choices_so_far(layers))
    else:
        hooks = [layer.register_forward_hook(count) for layer in list_convolutions(model)]
        try:
            run_once(model, example_input, layers, record)
        finally:
            for hook in hooks:
                hook.remove()
    kept = sum(kept_filters.size(layer.weight) for layer in layers)
    promises = {layer._mucudnn.promise_text: None for layer in layers}
    text = "; ".join(filter(None, promises))
    return Summary(tuple(choices), kept, text, describe_reach(model, flops)[0])


def _list_choices_so_far(layers: dict[Any, str]) -> Iterator[LayerChoice]:
    """Yield the choice for each pass of the latest compared step. Raise UsageError if there was none."""
    modules = {id(module): module for module in layers}
    comparisons = {layer._mucudnn.comparison for layer in layers} - {None}
    calls = [call for comparison in comparisons for call in comparison.calls() if call[0] in modules]
    if not calls:
        raise UsageError(
            "the model has not decided about a step yet: run some steps, or give an example input, "
            "as in summary(model, x)"
        )
    for identity, key, is_stock in calls:
        module, answer = modules[identity], answers.find(key)
        x = torch.empty_strided(key.x, key.x_strides, dtype=key.data_type, device=key.device)
        w = torch.empty_strided(key.w, key.w_strides, dtype=key.w_data_type, device=key.device)
        bias = None if key.bias is None else torch.empty(key.bias[0], dtype=key.bias[1], device=key.device)
        stock = STEPS_REASON if is_stock else None if answer and answer.gain > 0 else CALL_REASON
        kind = x.device.type
        with torch.autocast(kind, key.autocast, enabled=key.autocast is not None):
            sizes = key.stride, key.padding, key.dilation, key.groups
            operands = operands_of(Call(module, x, w, bias, *sizes, list), module._mucudnn)
            options = operands.options._replace(constant_filter=key.constant_filter)
            operands = operands._replace(options=options)
            for call in operands.calls(passes_of(key)).values():
                yield choice_of_pass(layers[module], call, operands.options, stock)


def _choices(name: str, operands: Operands, y: Tensor, stock: str | None) -> Iterator[LayerChoice]:
    """Yield the choice for each pass of a call. Backward passes run once, which decides them.

    `stock` says why PyTorch's own convolution runs the call; it is None if mucudnn does.
    """
    x, w, _, options, *_ = operands
    needed = needed_passes(x, w)
    with torch.no_grad():
        x, w, dy = x.detach(), w.detach(), torch.zeros_like(y)
        if "backward_data" in needed and stock is None:
            ops.backward_data(dy, w, x.shape, *options)
        if "backward_filter" in needed and stock is None:
            ops.backward_filter(x, dy, w.shape, *options)
        for call in operands.calls(needed).values():
            yield choice_of_pass(name, call, options, stock)

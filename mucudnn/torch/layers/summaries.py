"""`summary`: the choice for each convolution of a converted model, as a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mucudnn.output.table import html_table, text_table
from mucudnn.output.text import milliseconds, shortened
from mucudnn.sizes import format_size
from mucudnn.torch.layers.choice_of_layer import LayerChoice, call_of_pass, choice_of_pass
from mucudnn.torch.layers.convert import converted, is_given_to_stock, operands_of
from mucudnn.torch.layers.functional import Operands, runs_stock
from mucudnn.torch.layers.one_run import run_once
from mucudnn.torch.operators import ops
from mucudnn.torch.operators.passes import can_divide, needed_passes

_HEADS = ("layer", "pass", "kernel", "micro-batches", "predicted ms", "workspace")
_FIGURES = (False, False, False, False, True, True)
_LONGEST = 32  # characters of a layer's name in the text


@dataclass(frozen=True)
class Summary:
    """The choices for the convolutions of a model. Its text is a table, and so is its form in notebooks."""

    choices: tuple[LayerChoice, ...]

    def __str__(self) -> str:
        rows = [
            (shortened(layer, _LONGEST), pass_, kernel, chosen.replace(" + ", "\n"), *figures)
            for layer, pass_, kernel, chosen, *figures in self._rows()
        ]
        return "\n".join([text_table(_HEADS, rows, _FIGURES), "", self._total()])

    def _repr_html_(self) -> str:
        """Return the table, which notebooks show."""
        return html_table(self._total(), _HEADS, list(self._rows()))

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for one in self.choices:
            chosen = one.micro_batches or "PyTorch's own"
            size = "–" if one.workspace is None else format_size(one.workspace)
            yield one.layer, one.pass_, one.kernel, chosen, milliseconds(one.time_ms), size

    def _total(self) -> str:
        ours = [one for one in self.choices if one.micro_batches is not None]
        time = sum(one.time_ms or 0.0 for one in ours)
        workspace = max((one.workspace or 0 for one in ours), default=0)
        return (
            f"{len(ours)} of {len(self.choices)} passes by mucudnn: {milliseconds(time)} ms predicted, "
            f"workspace at most {format_size(workspace)}"
        )


def summary(model: Any, example_input: Any) -> Summary:
    """Return the choice for each convolution of a converted model: `print(mucudnn.torch.summary(model, x))`.

    The model runs once on `example_input` (a tensor, or a tuple of arguments), uncompiled. Its buffers and
    the random number generators keep their state. The table has the forward pass of each call of a
    convolution, and the backward passes whose gradients are enabled and needed. A kernel that has not run yet
    is decided now, as its first call does it. That may take seconds, because it measures. Where a comparison
    of whole steps has ended, the table shows what runs since then.

    Times are predicted, in milliseconds: sums of the micro-batches' times. The workspace is in bytes in the
    choices, and has a unit in the table.

    Raises UsageError (a ValueError) for a model that is not converted.
    """
    layers = converted(model)
    found: list[LayerChoice] = []

    def record(module: Any, args: tuple[Tensor, ...], given: dict[str, Tensor], output: Tensor) -> None:
        x = args[0] if args else given["input"]
        name = layers[module]
        if not can_divide(x, module.weight):
            found.append(LayerChoice(name, "forward", f"an input of {tuple(x.shape)}"))
            return
        operands = operands_of(module, x, module.weight, module.bias, module._mucudnn)
        y = output if operands.batched else output.unsqueeze(0)
        found.extend(_choices(name, operands, y, is_given_to_stock(module, x)))

    hooks = [layer.register_forward_hook(record, with_kwargs=True) for layer in layers]
    try:
        run_once(model, example_input)
    finally:
        for hook in hooks:
            hook.remove()
    return Summary(tuple(found))


def _choices(name: str, given: Operands, y: Tensor, is_given_to_stock: bool) -> Iterator[LayerChoice]:
    """Yield the choice for each pass of a call. Backward passes run once, which decides them."""
    needed = needed_passes(given.x, given.w)
    is_stock = is_given_to_stock or runs_stock(given)
    with torch.no_grad():
        x, w, dy = given.x.detach(), given.w.detach(), torch.zeros_like(y)
        if "backward_data" in needed and not is_stock:
            ops.backward_data(dy, w, x.shape, *given.options)
        if "backward_filter" in needed and not is_stock:
            ops.backward_filter(x, dy, w.shape, *given.options)
        for pass_ in needed:
            call = call_of_pass(pass_, x, w, dy, given.options)
            one = choice_of_pass(name, pass_, call, given.options)
            yield LayerChoice(name, pass_, one.kernel) if is_stock else one

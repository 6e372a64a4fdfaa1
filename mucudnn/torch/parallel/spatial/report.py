"""`report`: which layers of a model ran on parts, and which functions gathered their tensors."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from torch import nn

from mucudnn.torch.parallel.spatial import gathering
from mucudnn.torch.parallel.spatial.divided import Divided, logical_tensors
from mucudnn.torch.parallel.spatial.gathering import Gathering
from mucudnn.torch.windows.spans import product

_LAYERS = (nn.modules.conv._ConvNd, nn.Linear)


class LayerRun(NamedTuple):
    """A convolution or linear layer in one run: the ranks that shared it, and its multiplications in all."""

    name: str
    kind: str
    ranks: int
    work: int


class Report:
    """The layers that ran within a `with` block, and the functions that gathered tensors meanwhile.

    Attributes:
        layers: each run of a convolution or a linear layer, in order.
        gatherings: each gathering of a function, in order.
    """

    def __init__(self) -> None:
        self.layers: list[LayerRun] = []
        self.gatherings: list[Gathering] = []

    def divided_share(self, kind: str = "") -> float:
        """Return the share of the multiplications that ran divided; 1 if there were none.

        Only layers whose class has `kind` in its name count, such as "Conv".
        """
        chosen = [layer for layer in self.layers if kind in layer.kind]
        total = sum(layer.work for layer in chosen)
        return sum(layer.work for layer in chosen if layer.ranks > 1) / total if total else 1.0

    def __str__(self) -> str:
        """Return a text with the share of divided work, the undivided layers and the gatherings."""
        divided = sum(layer.ranks > 1 for layer in self.layers)
        lines = [
            f"{divided} of {len(self.layers)} convolutions and linear layers ran divided, with "
            f"{self.divided_share():.0%} of the multiplications"
        ]
        whole = dict.fromkeys(f"{layer.name} ({layer.kind})" for layer in self.layers if layer.ranks == 1)
        lines += [f"undivided: {name}" for name in whole]
        bytes_of: dict[tuple[str, str], int] = {}
        for event in self.gatherings:
            key = event.layer or "the model", event.function
            bytes_of[key] = bytes_of.get(key, 0) + event.size
        lines += [f"gathered: {layer}, {size:,} bytes for {name}" for (layer, name), size in bytes_of.items()]
        return "\n".join(lines)


@contextmanager
def report(model: nn.Module) -> Iterator[Report]:
    """Note which layers of a model run divided, in a context.

    with spatial.report(model) as layers:
        model(x)
    print(layers)

    Convolutions and linear layers count; `divided_share` weighs them by their multiplications. A layer is
    undivided if its input was a whole tensor, so that every rank computed all of it.
    """
    run = Report()
    names = {layer: name for name, layer in model.named_modules() if isinstance(layer, _LAYERS)}

    def note(layer: Any, args: Any, kwargs: Any, result: Any) -> None:
        x, y = logical_tensors((args, kwargs))[0], logical_tensors(result)[0]
        ranks = x.division.ranks if isinstance(x, Divided) else 1
        is_transposed = isinstance(layer, nn.modules.conv._ConvTransposeNd)
        values = product(list((x if is_transposed else y).shape))
        each = layer.weight.numel() // layer.weight.shape[0]
        run.layers.append(LayerRun(names[layer], type(layer).__name__, ranks, values * each))

    listener = run.gatherings.append
    with ExitStack() as stack:
        for layer in names:
            stack.enter_context(layer.register_forward_hook(note, with_kwargs=True))
        gathering.listeners.append(listener)
        stack.callback(gathering.listeners.remove, listener)
        yield run

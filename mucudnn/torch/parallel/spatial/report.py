"""`report`: which layers of a model ran on parts, and which functions gathered their tensors."""

from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple

from torch import nn

from mucudnn.torch.parallel.spatial import gathering
from mucudnn.torch.parallel.spatial.divided import Divided, logical_tensors
from mucudnn.torch.parallel.spatial.gathering import Gathering
from mucudnn.torch.parallel.spatial.windows import product

_LAYERS = (nn.modules.conv._ConvNd, nn.Linear)


class LayerRun(NamedTuple):
    """A convolution or linear layer in one run: the ranks that shared it, and its multiplications in all."""

    name: str
    kind: str
    ranks: int
    work: int


@dataclass
class Report:
    """The layers that ran within a `with` block, and the functions that gathered tensors meanwhile.

    Attributes:
        layers: each run of a convolution or a linear layer, in order.
        gatherings: each gathering of a function, in order.
    """

    model: nn.Module

    def __post_init__(self) -> None:
        self.layers: list[LayerRun] = []
        self.gatherings: list[Gathering] = []
        self._handles: list[Any] = []

    def __enter__(self) -> "Report":
        for name, module in self.model.named_modules():
            if isinstance(module, _LAYERS):
                self._handles.append(module.register_forward_hook(self._noting(name), with_kwargs=True))
        gathering.listeners.append(self.gatherings.append)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        gathering.listeners.remove(self.gatherings.append)

    def _noting(self, name: str) -> Any:
        def note(module: Any, args: Any, kwargs: Any, result: Any) -> None:
            x, y = logical_tensors((args, kwargs))[0], logical_tensors(result)[0]
            ranks = x.division.ranks if isinstance(x, Divided) else 1
            is_transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
            values = product(list((x if is_transposed else y).shape))
            each = module.weight.numel() // module.weight.shape[0]
            self.layers.append(LayerRun(name, type(module).__name__, ranks, values * each))

        return note

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


def report(model: nn.Module) -> Report:
    """Return a context that notes which layers of a model run divided.

    with spatial.report(model) as layers:
        model(x)
    print(layers)

    Convolutions and linear layers count; `divided_share` weighs them by their multiplications. A layer is
    undivided if its input was a whole tensor, so that every rank computed all of it.
    """
    return Report(model)

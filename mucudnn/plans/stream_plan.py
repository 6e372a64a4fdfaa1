"""The plan by which a module runs on one sample in tiles: numbers and text, without PyTorch."""

from collections.abc import Iterator
from dataclasses import dataclass

from mucudnn.codec import Count, Document, Positive
from mucudnn.output.table import Tabular
from mucudnn.sizes import format_size


@dataclass(frozen=True)
class StreamPass:
    """A pass over the sample in tiles: the tensors that it stores; none if it adds up statistics of norms.

    `tile` is the bytes of a tile's tensors, and `workspace` what a convolution may take beside them.
    """

    stores: tuple[str, ...]
    tiles: Positive
    tile: Count
    workspace: Count


@dataclass(frozen=True)
class StreamPlan(Tabular, Document, kind="stream plan", version=1):
    """How a module runs in tiles, shown as a table in text and in notebooks.

    Attributes:
        inputs: the data types and shapes of the inputs, and how they are passed.
        operators: a digest of the operators that the module runs.
        training: True if results have gradients.
        memory: the budget in bytes.
        peak: the most bytes that a run takes beside the parameters, the inputs and the workspaces of
            convolutions, for which the rest of the budget is left; in training, with the gradients of the
            parameters.
        work: the convolutions' and products' operations, relative to those of the whole run.
        store: where stored tensors lie, apart from results: on the "device", the "host" or the "disk".
        elsewhere: the bytes of those that lie on the host or the disk.
        cuts: the operators behind which all tensors that are needed later are stored, by their number.
        again: the tensors that are computed from the inputs again, where they are needed later.
        passes: the passes over the sample.
        whole: the operators without a rule for tiles, which run whole, with their modules.
    """

    _heads = ("pass", "stores", "tiles", "memory of a tile", "workspace")
    _figures = (True, False, True, True, True)
    inputs: tuple[str, ...]
    operators: str
    training: bool
    memory: Count
    peak: Count
    work: float
    store: str
    elsewhere: Count
    cuts: tuple[Count, ...]
    again: tuple[str, ...]
    passes: tuple[StreamPass, ...]
    whole: tuple[str, ...]

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for number, its in enumerate(self.passes, 1):
            sizes = format_size(its.tile), format_size(its.workspace)
            yield str(number), ", ".join(its.stores) or "statistics", str(its.tiles), *sizes

    def _sentences(self) -> Iterator[str]:
        yield f"The peak is {format_size(self.peak)} of {format_size(self.memory)}."
        yield f"Tiles overlap, and norms read first: {self.work:.2f} times the operations of a whole run."
        if self.elsewhere:
            yield f"{format_size(self.elsewhere)} are stored on the {self.store}."
        if self.again:
            yield f"{', '.join(self.again)} is computed again, where a later pass reads it."
        if self.whole:
            yield f"These run whole: {', '.join(self.whole)}."

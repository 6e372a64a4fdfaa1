"""`stream`: run an unmodified module on one huge sample in tiles, within a budget, with the same result."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from mucudnn.arrays.call import bytes_of as parse_bytes
from mucudnn.errors import UsageError
from mucudnn.output.table import Tabular
from mucudnn.sizes import format_size
from mucudnn.torch.streaming.graph import Sample
from mucudnn.torch.streaming.planning import CPU, GPU, Planner, Schedule, choose
from mucudnn.torch.streaming.run import Following, Run, make_store

STORES = ("auto", "device", "host", "disk")


@dataclass(frozen=True)
class StreamPlan(Tabular):
    """How a module runs in tiles, shown as a table in text and in notebooks.

    Attributes:
        memory: the budget in bytes.
        peak: the most bytes that a run takes beside the parameters and the inputs; in training, with the
            gradients of the parameters.
        work: the convolutions' and products' operations, relative to those of the whole run.
        passes: for each pass over the sample the tensors that it stores, or "statistics" if it only adds up
            those of norms; the number of its tiles; and the bytes of a tile.
        whole: the operators without a rule for tiles, which run whole, with their modules.
        elsewhere: the bytes that are stored on the host or the disk.
    """

    _heads = ("pass", "stores", "tiles", "memory of a tile")
    _figures = (True, False, True, True)
    memory: int
    peak: int
    work: float
    passes: tuple[tuple[str, int, int], ...]
    whole: tuple[str, ...]
    elsewhere: int

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for number, (stores, tiles, size) in enumerate(self.passes, 1):
            yield str(number), stores, str(tiles), format_size(size)

    def _sentences(self) -> Iterator[str]:
        yield f"The peak is {format_size(self.peak)} of {format_size(self.memory)}."
        yield f"Tiles overlap, and norms read first: {self.work:.2f} times the operations of a whole run."
        if self.elsewhere:
            yield f"{format_size(self.elsewhere)} are stored on the host or the disk."
        if self.whole:
            yield f"These run whole: {', '.join(self.whole)}."


def stream(
    module: nn.Module, example_input: Any, *, memory: int | str, store: str = "auto", training: bool = False
) -> "Streamed":
    """Return a module that runs on one sample in tiles that pass through many layers.

    The results are those of the module apart from rounding, and so are gradients: nothing is approximated at
    the borders of tiles, and norms take the statistics of the whole sample. The module itself stays as it is,
    and the result shares its parameters. It runs samples of the example's shapes only.

    Args:
        module: a module in a mode that changes no state and draws no random numbers, such as after `eval()`.
        example_input: a tensor, a tuple of arguments, or a dict of named arguments. Nothing is computed with
            it.
        memory: the bytes for all tensors of a run but the parameters and the inputs, such as "2GiB".
        store: where tensors between the passes are stored whole: on the "device", in the memory of the
            "host", in a temporary file on the "disk", or "auto": on the device, or else where the modelled
            time is less: on the host for a GPU, and on the disk for a CPU.
        training: True if results are to have gradients: these, those of the parameters, and what they need
            then count, too. Otherwise results never require gradients, and nothing is kept for them.

    Raises:
        UsageError: the module cannot be traced, changes its state or draws random numbers, or no plan fits
            the memory; the text then says how much the least takes.
    """
    if store not in STORES:
        raise UsageError(f"store is {store!r}: give one of {', '.join(STORES)}")
    return Streamed(module, example_input, parse_bytes("memory", memory), store, training=training)


class Streamed(nn.Module):
    """A module in tiles: see `stream`.

    Attributes:
        module: the module.
        plan: how it runs.
    """

    def __init__(
        self, module: nn.Module, example_input: Any, memory: int, store: str, *, training: bool
    ) -> None:
        super().__init__()
        args, kwargs = (
            (example_input if isinstance(example_input, tuple) else (example_input,)),
            dict[str, Any](),
        )
        if isinstance(example_input, Mapping):
            args, kwargs = (), dict(example_input)
        devices = {each.device for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)}
        if len(devices) != 1:
            raise UsageError(f"the inputs lie on {len(devices)} devices: give tensors on one")
        [self._device] = devices
        self.module, self._sample = module, Sample(module, args, kwargs)
        planner = Planner(self._sample, CPU if self._device.type == "cpu" else GPU, training=training)
        self._schedule = choose(planner, self._sample, memory, store)
        place = store if store in ("host", "disk") else "host" if self._device.type == "cuda" else "disk"
        self._has_gradients = training
        self._store = make_store(self._device, place, self._schedule.away)
        self.plan = _describe(planner, self._sample, self._schedule, memory)
        self.train(module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns. Raises UsageError for shapes other than the example's."""
        if torch.is_autocast_enabled(self._device.type):
            raise UsageError(
                "a run in tiles knows no autocast: convert the module to the type it is to run in"
            )
        inputs = self._sample.bind(args, kwargs)
        run = Run(self._sample, self._schedule, self._store, self._device)
        learned = [each for each in self.module.parameters() if each.requires_grad]
        if self._has_gradients and torch.is_grad_enabled():
            found = Following.apply(run, list(inputs), learned, *inputs.values(), *learned)
            return self._sample.result(dict(zip(self._sample.outputs, found, strict=True)))
        with torch.no_grad():
            return self._sample.result(run.forward(inputs, keep=False))


def _describe(planner: Planner, sample: Sample, schedule: Schedule, memory: int) -> StreamPlan:
    costs = [(each, planner.cost(each, each.tiles)) for each in schedule.passes]
    rows = (
        (", ".join(node.name for node in each.stored) or "statistics", each.tiles, cost.work)
        for each, cost in costs
    )
    elsewhere = sum(int(node.meta["val"].nbytes) for node in schedule.away)
    work = sum(cost.flops for _, cost in costs) / (planner.whole_flops or 1.0)
    whole = tuple(dict.fromkeys(sample.whole.values()))
    return StreamPlan(memory, schedule.peak, max(work, 1.0), tuple(rows), whole, elsewhere)

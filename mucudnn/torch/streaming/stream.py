"""`stream`: run an unmodified module on one huge sample in tiles, within a budget, with the same result."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mucudnn.arrays.call import bytes_of as parse_bytes
from mucudnn.errors import UsageError
from mucudnn.plans.stream_plan import StreamPlan
from mucudnn.torch.streaming.costs import costs_of
from mucudnn.torch.streaming.graph import Sample
from mucudnn.torch.streaming.planning import Planner
from mucudnn.torch.streaming.run import Following, Run

STORES = ("auto", "device", "host", "disk")


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
    args, kwargs = (example_input if isinstance(example_input, tuple) else (example_input,)), dict[str, Any]()
    if isinstance(example_input, Mapping):
        args, kwargs = (), dict(example_input)
    budget, sample = parse_bytes("memory", memory), Sample(module, args, kwargs)
    planner = Planner(sample, costs_of(sample.device), training=training)
    place = store if store in ("host", "disk") else "disk" if sample.device.type == "cpu" else "host"
    return Streamed(sample, planner.describe(planner.choose(budget, store), budget, place))


class Streamed(nn.Module):
    """A module in tiles: see `stream`.

    Attributes:
        module: the module.
        plan: how it runs.
    """

    def __init__(self, sample: Sample, plan: StreamPlan) -> None:
        """Let a module follow a plan. Raises UsageError if the plan is for other operators."""
        super().__init__()
        if plan.operators != sample.digest:
            raise UsageError(
                f"the plan is for inputs {', '.join(plan.inputs)} of another module or PyTorch, and this "
                f"one runs on {', '.join(sample.spelled)}: make a plan for it"
            )
        self.module, self.plan = sample.module, plan
        self._sample = sample

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the module returns. Raises UsageError for shapes other than the example's."""
        if torch.is_autocast_enabled(self._sample.device.type):
            raise UsageError(
                "a run in tiles knows no autocast: convert the module to the type it is to run in"
            )
        sample = self._sample
        inputs = sample.bind(args, kwargs)
        run = Run(sample, self.plan)
        if self.plan.training and torch.is_grad_enabled():
            learned = [each for each in self.module.parameters() if each.requires_grad]
            found = Following.apply(run, list(inputs), learned, *inputs.values(), *learned)
            return sample.result(dict(zip(sample.outputs, found, strict=True)))
        with torch.no_grad():
            return sample.result(run.forward(inputs, keep=False))


class Planned:
    """The forward method of a module that follows a plan: `apply` sets it, and `restore` removes it."""

    def __init__(self, module: nn.Module, plan: StreamPlan) -> None:
        self._module, self._plan = module, plan
        self._streamed: Streamed | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module in tiles; the first call traces it. Raises UsageError as `stream` does."""
        if self._streamed is None:
            del self._module.forward
            try:
                sample = Sample(self._module, args, kwargs)
            finally:
                self._module.forward = self
            self._streamed = Streamed(sample, self._plan)
        return self._streamed.forward(*args, **kwargs)

"""`split`: cut an unchanged model into stages that take about the same time."""

import copy
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import nn

from mucudnn.errors import UsageError
from mucudnn.output.table import text_table
from mucudnn.sizes import format_size
from mucudnn.solver.devices.cutting import cut
from mucudnn.solver.devices.pipelines import Stage
from mucudnn.torch.parallel.pipeline.agreement import Agreement
from mucudnn.torch.parallel.pipeline.arguments import Arguments
from mucudnn.torch.parallel.pipeline.comparing import check_stages
from mucudnn.torch.parallel.pipeline.program import (
    Operation,
    Part,
    Program,
    SplitStage,
    Value,
    add_at,
    needed_values,
    references,
    values_in,
)
from mucudnn.torch.parallel.pipeline.recording import record
from mucudnn.torch.parallel.pipeline.stages import measure_stage


class Split(list[SplitStage]):
    """The stages of a model, and what they cost.

    Attributes:
        costs: the costs of each stage for one micro-batch.
    """

    def __init__(self, stages: Iterable[SplitStage], costs: Sequence[Stage]) -> None:
        super().__init__(stages)
        self.costs = costs

    def __str__(self) -> str:
        """Return a table of the stages' costs for one micro-batch."""
        heads = "stage", "begins with", "forward ms", "backward ms", "receives", "activations", "weights"
        rows = [
            (
                str(number),
                stage.split_operations[0].name,
                f"{cost.forward_ms:.3g}",
                f"{cost.backward_ms:.3g}",
                format_size(cost.input),
                format_size(cost.activations),
                format_size(cost.weights),
            )
            for number, (stage, cost) in enumerate(zip(self, self.costs, strict=True))
        ]
        return text_table(heads, rows, [True, False, True, True, True, True, True])


def split(model: nn.Module, *, stages: int, example_input: Any) -> Split:
    """Cut an unchanged model into stages whose slowest takes as little time as possible.

    Up to 5 % more time is accepted for a cut that sends fewer bytes. The model's code runs once on tensors
    without values, and modules whose code needs values stay whole. All operations are measured, and the
    stages are compared with the model, on rank 0 if there are several ranks, each of which must call this
    function. Values that a later stage needs pass through the stages between.

    The stages share their modules with the model, and their parameters have the same names, so `state_dict`
    of a pipeline has the names of the model.

    Args:
        model: the model, which may be on the meta device.
        stages: the number of stages.
        example_input: inputs of one micro-batch, on the device of the model, or the device that shall measure
            it: a tensor, or a tuple or dict of tensors, as in `BidirectionalPipeline.step`.

    Raises:
        UsageError: the model cannot be recorded, or has too few places for a cut, or the stages would not
            compute what the model does. All ranks raise it.
    """
    if stages < 1:
        raise UsageError(f"stages is {stages}, must be at least 1")
    example = Arguments.of(example_input, "example_input")
    program = record(model, example)
    operations = program.operations
    crossings = needed_values(operations, program.output)
    crossings[0] = list(range(len(example.tensors)))
    device = example.tensors[0].device
    parts = references([operation.call for operation in operations], Part)
    unused = [
        name
        for name, _ in (*model.named_parameters(), *model.named_buffers())
        if not any(f"{name}.".startswith(f"{part.name}.") for part in parts)
    ]

    def measure(stage: SplitStage) -> Stage:
        received = Arguments(tuple(program.values[v] for v in stage.split_received))
        if any(tensor.is_meta for tensor in (*stage.parameters(), *stage.buffers())):
            stage = copy.deepcopy(stage).to_empty(device=device)
        return measure_stage(stage, received, device)

    def measure_operation(operation: Operation) -> float:
        received = sorted(values_in(operation.call) | {0})  # an input tells the samples
        results = tuple(map(Value, operation.results))
        cost = measure(SplitStage(model, program, received, [operation], results))
        return cost.forward_ms + cost.backward_ms

    def make(starts: Sequence[int]) -> list[SplitStage]:
        made = []
        for a, b in itertools.pairwise([0, *starts, len(operations)]):
            is_last = b == len(operations)
            output = program.output if is_last else tuple(map(Value, crossings[b]))
            names = unused if is_last else []
            made.append(SplitStage(model, program, crossings[a], operations[a:b], output, names))
        return made

    def choose() -> tuple[list[int], list[Stage]]:
        sent = [_bytes_sent(crossings[i], i, program) for i in range(1, len(operations))]
        times = list(map(measure_operation, operations))
        try:
            starts = cut(times, sent, stages)
        except ValueError as error:
            reasons = [f"{name} stays whole, because {reason}" for name, reason in program.whole.items()]
            views = "no cut may separate two views of a tensor that changes in place later"
            raise UsageError(f"{error}: {'; '.join([*reasons, views])}") from None
        made = make(starts)
        check_stages(model, made, example)
        if program.asks_for_one:
            check_stages(model, made, example.map(lambda tensor: tensor[:1]))
        return starts, list(map(measure, made))

    chosen: Any = None
    failure: UsageError | None = None
    if not dist.is_initialized() or dist.get_rank() == 0:  # because all ranks must cut alike
        try:
            chosen = choose()
        except UsageError as error:
            failure = error
        except Exception as error:  # the model's code may raise any error
            failure = UsageError(f"the model cannot be run, so cut it by hand: {error!r}")
            failure.__cause__ = error
    starts, costs = Agreement().gather(chosen, failure)[0]
    return Split(make(starts), costs)


def merge_stages(modules: Mapping[int, nn.Module]) -> nn.Module:
    """Return one module of several stages, in which parameters have their names in the whole model.

    These are the names in `nn.Sequential(*stages)`, or those of the undivided model after `split`.
    """
    whole = nn.Module()
    for stage, module in modules.items():
        if isinstance(module, SplitStage):
            for name in module.split_names:
                add_at(whole, name, module)
        else:
            whole.add_module(str(stage), module)
    return whole


def _bytes_sent(crossing: Sequence[int], start: int, program: Program) -> float:
    """Return the bytes that a cut before the operation `start` sends, or infinity if it cannot be made."""
    # After a message, views no longer share memory, so a change of one would not be a change of the other.
    counts = Counter(program.memories[number] for number in crossing)
    differs = any(count > 1 and program.last_changes.get(m, -1) >= start for m, count in counts.items())
    if differs or program.samples.keys().isdisjoint(crossing):
        return math.inf
    return float(sum(program.values[number].nbytes for number in crossing))

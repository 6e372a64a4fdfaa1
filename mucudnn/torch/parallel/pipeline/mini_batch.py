"""The run of one mini-batch: a rank's tasks in the order of the schedule, with messages between them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from mucudnn.solver.devices.schedules import Schedule, Task
from mucudnn.torch.parallel.pipeline.arguments import Arguments, join
from mucudnn.torch.parallel.pipeline.losses import MiniBatchLoss
from mucudnn.torch.parallel.pipeline.shapes import Layout, distinct, enter
from mucudnn.torch.parallel.pipeline.stages import run_stage
from mucudnn.torch.parallel.pipeline.transfers import Transfers


@dataclass(eq=False)
class MiniBatch(ABC):
    """The run of a mini-batch on a rank, task by task.

    Attributes:
        schedule: the orders of work.
        modules: the stages that this rank holds, {(stage, replica): module}.
        inputs: the micro-batches of inputs.
        transfers: the messages.
        error: the error of this rank; None if it has none.
    """

    schedule: Schedule
    modules: Mapping[tuple[int, int], nn.Module]
    inputs: Sequence[Arguments]
    transfers: Transfers
    error: Exception | None = field(default=None, init=False)
    _failed: bool = field(default=False, init=False)
    _kept: dict[tuple[int, int], tuple[list[Tensor], tuple[Tensor, ...]]] = field(
        default_factory=dict, init=False
    )

    def perform(self, tasks: Sequence[Task]) -> None:
        """Run all tasks of this rank, and wait until other ranks have received their results."""
        for task in tasks:
            with record_function(str(task)):
                self._perform(task)
        self.transfers.finish()

    def _perform(self, task: Task) -> None:
        """Run a task. After an error, only exchange messages, because other ranks learn of it at the end."""
        arrived = self.transfers.receive(task)
        self._failed = self._failed or arrived is None
        result = None
        if arrived is not None and not self._failed:
            try:
                result = self._run(task, arrived)
                self.transfers.check(task, result)
            except Exception as error:  # the code of stages and of the loss may raise any error
                inputs = f" with {Layout.of(arrived)}" if arrived.tensors else ""
                error.add_note(f"in the {task}{inputs}")
                self._failed, self.error, result = True, error, None
                self._kept.clear()
        self.transfers.send(task, result)

    @abstractmethod
    def _run(self, task: Task, arrived: Arguments) -> Arguments:
        """Return the result of a task: a stage's outputs, or the gradients of its inputs."""


@dataclass(eq=False)
class Training(MiniBatch):
    """The forward and backward passes of a mini-batch.

    Attributes:
        targets: the micro-batches of targets.
        loss: the loss, which the last stage computes.
        live: the most micro-batches whose activations were kept at once.
    """

    targets: Sequence[Arguments]
    loss: MiniBatchLoss
    live: int = field(default=0, init=False)

    def _run(self, task: Task, arrived: Arguments) -> Arguments:
        if task.pass_ == "forward":
            return self._forward(task, arrived)
        return Arguments(tuple(self._backward(task, arrived.tensors)))

    def _forward(self, task: Task, received: Arguments) -> Arguments:
        """Return the outputs of a stage."""
        inputs = enter(received) if task.stage > 0 else self.inputs[task.micro_batch]
        returned = run_stage(self.modules[task.stage, task.replica], inputs, self.schedule.recomputes)
        if task.stage == self.schedule.stages - 1:
            outputs = Arguments((self.loss.part(returned, self.targets[task.micro_batch]),))
        else:
            outputs = Arguments.of(returned, f"the output of stage {task.stage}")
        self._kept[task.micro_batch, task.stage] = distinct(received.tensors), outputs.tensors
        self.live = max(self.live, len(self._kept))
        return outputs

    def _backward(self, task: Task, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients of a stage's inputs."""
        received, outputs = self._kept.pop((task.micro_batch, task.stage))
        needed = [output for output in distinct(outputs) if output.requires_grad]
        # The backward pass must not cast layers that autocast left alone in the forward pass.
        with torch.autocast(outputs[0].device.type, enabled=False):
            if task.stage == self.schedule.stages - 1:
                outputs[0].backward()
            elif needed:
                self.transfers.release_outputs(task)
                torch.autograd.backward(needed, gradients)
        leaves = [leaf for leaf in received if leaf.requires_grad]
        return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]


@dataclass(eq=False)
class Evaluation(MiniBatch):
    """The forward passes of a mini-batch, of which nothing is kept.

    Attributes:
        outputs: the last stage's outputs for each micro-batch, and at the end those of the mini-batch;
            empty on ranks that do not run this stage.
    """

    outputs: list[Arguments] = field(default_factory=list, init=False)

    def _perform(self, task: Task) -> None:
        super()._perform(task)
        self.transfers.finish(keep=1)  # so that a fast rank does not keep the outputs of all micro-batches

    def _run(self, task: Task, arrived: Arguments) -> Arguments:
        inputs = arrived if task.stage > 0 else self.inputs[task.micro_batch]
        what = f"the output of stage {task.stage}"
        outputs = Arguments.of(inputs.call(self.modules[task.stage, task.replica]), what)
        if task.stage == self.schedule.stages - 1:
            self.outputs.append(outputs)
            if len(self.outputs) == len(self.inputs):
                self.outputs = [join(self.outputs, what)]
        return outputs

"""The run of one mini-batch: a rank's tasks in the order of the schedule, with messages between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.profiler import record_function

from mucudnn.solver.devices.schedules import Schedule, Task
from mucudnn.torch.parallel.pipeline.arguments import Arguments, check_outputs, enter
from mucudnn.torch.parallel.pipeline.losses import MiniBatchLoss
from mucudnn.torch.parallel.pipeline.stages import run_stage
from mucudnn.torch.parallel.pipeline.transfers import Transfers


@dataclass(eq=False)
class MiniBatch:
    """The run of a mini-batch on a rank, task by task.

    Attributes:
        schedule: the orders of work.
        modules: the stages that this rank holds, {(stage, replica): module}.
        inputs: the micro-batches of inputs.
        transfers: the messages.
        loss: the loss, which the last stage computes; None if nothing is trained.
        targets: the micro-batches of targets.
        outputs: if nothing is trained, the last stage's outputs for each micro-batch.
        error: the error of this rank; None if it has none.
        live: the most micro-batches whose activations were kept at once.
    """

    schedule: Schedule
    modules: Mapping[tuple[int, int], nn.Module]
    inputs: Sequence[Arguments]
    transfers: Transfers
    loss: MiniBatchLoss | None = None
    targets: Sequence[Arguments] = ()

    def __post_init__(self) -> None:
        self.outputs: list[Arguments] = []
        self.error: Exception | None = None
        self.live, self._failed = 0, False
        self._kept: dict[tuple[int, int], tuple[Arguments, Arguments]] = {}

    def perform(self, tasks: Sequence[Task]) -> None:
        """Run all tasks of this rank, and wait until other ranks have received their results."""
        for task in tasks:
            with record_function(str(task)):
                self._perform(task)
            if self.loss is None:  # a fast rank must not keep the outputs of all micro-batches
                self.transfers.finish(keep=1)
        self.transfers.finish()

    def _perform(self, task: Task) -> None:
        """Run a task. After an error, only exchange messages, because other ranks learn of it at the end."""
        arrived, result = self.transfers.receive(task), Arguments(())
        if task.pass_ == "forward" and task.stage > 0 and not arrived.tensors:
            self._failed = True  # on another rank
        if not self._failed:
            try:
                run = self._forward if task.pass_ == "forward" else self._backward
                result = run(task, arrived)
            except Exception as error:  # the code of stages and of the loss may raise any error
                error.add_note(f"in the {task} with {arrived}" if arrived.tensors else f"in the {task}")
                self._failed, self.error = True, error
                self._kept.clear()
        self.transfers.send(task, result)

    def _forward(self, task: Task, received: Arguments) -> Arguments:
        """Return the outputs of a stage."""
        inputs = enter(received) if task.stage > 0 else self.inputs[task.micro_batch]
        returned = run_stage(self.modules[task.stage, task.replica], inputs, self.schedule.recomputes)
        is_last = task.stage == self.schedule.stages - 1
        if is_last and self.loss is not None:
            outputs = Arguments((self.loss.part(returned, self.targets[task.micro_batch]),))
        else:
            what = f"the output of stage {task.stage}"
            outputs = Arguments.of(returned, what)
            if not is_last:
                check_outputs(outputs, what, self.transfers.device)
        if self.loss is not None:
            self._kept[task.micro_batch, task.stage] = received, outputs
            self.live = max(self.live, len(self._kept))
        elif is_last:
            self.outputs.append(outputs)
        return outputs

    def _backward(self, task: Task, gradients: Arguments) -> Arguments:
        """Return the gradients of a stage's inputs."""
        received, outputs = self._kept.pop((task.micro_batch, task.stage))
        # The backward pass must not cast layers that autocast left alone in the forward pass.
        with torch.autocast(outputs.tensors[0].device.type, enabled=False):
            if task.stage == self.schedule.stages - 1:
                outputs.tensors[0].backward()
            elif outputs.trained:
                self.transfers.release_outputs(task)
                torch.autograd.backward(outputs.trained, gradients.tensors)
        leaves = received.trained
        return Arguments(tuple(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves))

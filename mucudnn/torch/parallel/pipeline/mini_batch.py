"""The run of one mini-batch: a rank's tasks in the order of the schedule, with messages between them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import compress

import torch
from torch import Tensor, nn

from mucudnn.solver.devices.schedules import Schedule, Task
from mucudnn.torch.parallel.pipeline.losses import MiniBatchLoss
from mucudnn.torch.parallel.pipeline.shapes import Layout, distinct, enter
from mucudnn.torch.parallel.pipeline.stages import run_stage
from mucudnn.torch.parallel.pipeline.transfers import Transfers


class MiniBatch:
    """The run of a mini-batch on a rank, task by task.

    Args:
        schedule: the orders of work.
        modules: the stages that this rank holds, {(stage, replica): module}.
        inputs: the micro-batches of inputs.
        targets: the micro-batches of targets.
        transfers: the messages.
        loss: the loss, which the last stage computes.

    Attributes:
        error: the error of this rank; None if it has none.
        live: the most micro-batches whose activations were kept at once.
    """

    def __init__(
        self,
        schedule: Schedule,
        modules: Mapping[tuple[int, int], nn.Module],
        inputs: Sequence[tuple[Tensor, ...]],
        targets: Sequence[tuple[Tensor, ...]],
        transfers: Transfers,
        loss: MiniBatchLoss,
    ) -> None:
        self._schedule, self._modules, self._last = schedule, modules, schedule.stages - 1
        self._inputs, self._targets, self._transfers, self._loss = inputs, targets, transfers, loss
        self._kept: dict[tuple[int, int], tuple[list[Tensor], tuple[Tensor, ...]]] = {}
        self._failed = False
        self.error: Exception | None = None
        self.live = 0

    def perform(self, task: Task) -> None:
        """Run a task. After an error, only exchange messages, because other ranks learn of it at the end."""
        arrived = self._transfers.receive(task)
        self._failed = self._failed or arrived is None
        result: Sequence[Tensor] = ()
        with self._catching_errors(task, arrived):
            if arrived is not None and not self._failed:
                run = self._forward if task.pass_ == "forward" else self._backward
                result = run(task, arrived)
        self._transfers.wait_for_all_ranks()
        with self._catching_errors(task, arrived):
            if task.pass_ == "forward" and not self._failed:
                self._transfers.check(task, result)
        self._transfers.send(task, None if self._failed else result)

    @contextmanager
    def _catching_errors(self, task: Task, arrived: Sequence[Tensor] | None) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the code of stages and of the loss may raise any error
            error.add_note(f"in the {task}" + (f" with {Layout.of(arrived)}" if arrived else ""))
            self._failed, self.error = True, error
            self._kept.clear()

    def _forward(self, task: Task, received: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the outputs of a stage."""
        inputs = enter(received) if task.stage > 0 else self._inputs[task.micro_batch]
        module, what = self._modules[task.stage, task.replica], f"the output of stage {task.stage}"
        outputs = run_stage(module, inputs, what, self._schedule.recomputes)
        if task.stage == self._last:
            outputs = (self._loss.part(outputs, self._targets[task.micro_batch]),)
        self._kept[task.micro_batch, task.stage] = distinct(received), outputs
        self.live = max(self.live, len(self._kept))
        return outputs

    def _backward(self, task: Task, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the gradients of a stage's inputs."""
        received, outputs = self._kept.pop((task.micro_batch, task.stage))
        needed = []
        if gradients:
            have_gradients = self._transfers.release_outputs(task)
            pairs = zip(compress(distinct(outputs), have_gradients), gradients, strict=True)
            needed = [(output, gradient) for output, gradient in pairs if output.requires_grad]
        # The backward pass must not cast layers that autocast left alone in the forward pass.
        with torch.autocast(outputs[0].device.type, enabled=False):
            if task.stage == self._last:
                outputs[0].backward()
            elif needed:
                torch.autograd.backward(*zip(*needed, strict=True))
        leaves = [leaf for leaf in received if leaf.requires_grad]
        return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]

"""The messages between ranks of a pipeline, in an order in which no two of them wait for each other.

A header describes the outputs of each stage, so their layout may change from one micro-batch to the next. It
travels over gloo as soon as the sender's host has started the stage, so no device waits for it. Receivers ask
for all headers as the step begins, because messages take longer if they ask for each when they need it.

NCCL matches the messages of two ranks by their order, not by a tag, so a receiver takes the messages of each
peer in the order in which the peer sends them, before it needs them if necessary. NCCL also runs all messages
of a communicator one after another, so messages to higher ranks and messages to lower ranks have separate
process groups, in which two neighbours never send to each other at the same time.
"""

import pickle
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from mucudnn.errors import UsageError
from mucudnn.solver.devices.schedules import Schedule, Task
from mucudnn.torch.parallel.pipeline.arguments import Arguments
from mucudnn.torch.parallel.ranks import naming

_HEADER = 1 << 16  # bytes, enough for the outlines of hundreds of tensors


def consumer(task: Task, schedule: Schedule) -> Task | None:
    """Return the task on another stage that needs this task's result, or None."""
    follower = task.follower(schedule.stages)
    return follower if follower and follower.stage != task.stage else None


@dataclass(eq=False)
class Transfers:
    """One rank's messages for one mini-batch.

    Attributes:
        schedule: the orders of work.
        rank: this process's rank in the pipeline.
        row: the global ranks of the pipeline.
        groups: its process groups, for messages to higher ranks and to lower ranks.
        headers: the group for headers.
        device: the device of all tensors that travel.
    """

    schedule: Schedule
    rank: int
    row: Sequence[int]
    groups: Sequence[dist.ProcessGroup]
    headers: dist.ProcessGroup
    device: torch.device

    def __post_init__(self) -> None:
        self._senders: dict[Task, int] = {}
        self._expected = [deque[Task]() for _ in self.row]
        self._headers: dict[Task, tuple[Tensor, dist.Work]] = {}
        for peer, order in enumerate(self.schedule.orders):
            for task in filter(None, (consumer(sent, self.schedule) for sent in order)):
                if self.schedule.rank_of(task.stage, task.replica) == self.rank:
                    self._senders[task] = peer
                    self._expected[peer].append(task)
                    if task.pass_ == "forward":
                        with self._naming(task):
                            header = torch.empty(_HEADER, dtype=torch.uint8)
                            self._headers[task] = header, dist.irecv(header, self.row[peer], self.headers)
        self._arriving: dict[Task, tuple[Arguments, list[dist.Work]]] = {}
        # The tensors that were sent, each with the version that it had then.
        self._leaving: dict[Task, list[tuple[Tensor, int, dist.Work]]] = {}
        # The outlines of outputs and inputs, which say what gradients have yet to travel.
        self._outputs: dict[Task, Arguments] = {}
        self._inputs: dict[Task, Arguments] = {}

    def send(self, task: Task, result: Arguments) -> None:
        """Send the result of a task to the rank that needs it: a stage's outputs, or its inputs' gradients.

        A rank that failed passes and sends no tensors as outputs, and sends placeholders of gradients.
        """
        target = consumer(task, self.schedule)
        if target is None:
            return
        receiver = self.schedule.rank_of(target.stage, target.replica)
        group, to = self.groups[self.rank > receiver], self.row[receiver]
        with naming(f"rank {self.rank} of the pipeline sent the {task} to rank {receiver}"):
            if task.pass_ == "forward":
                outline = self._outputs[task] = result.outline()
                text = bytearray(pickle.dumps(outline).ljust(_HEADER, b"\0"))
                sent = [(torch.frombuffer(text, dtype=torch.uint8), self.headers)]
                for t in result.distinct:
                    # A module may change a buffer that it returned, which no gradient shows to have arrived.
                    sent.append((_plain(t) if t.requires_grad else _plain(t).clone(), group))
            else:
                placeholders = self._gradients(self._inputs.pop(_forward_of(task)))
                sent = [(_plain(t), group) for t in result.tensors or placeholders]
            self._leaving[task] = [(t, t._version, dist.isend(t, to, way)) for t, way in sent]

    def receive(self, task: Task) -> Arguments:
        """Wait for the tensors that another rank sends for a task, and return them.

        They are the inputs of a stage, as leaves that require a gradient if it travels back, or the gradients
        of its outputs. Return no tensors if no rank sends any, or if the sender of the inputs failed.

        Raises MucudnnError if they do not arrive in time.
        """
        if task not in self._senders:
            return Arguments(())
        with self._naming(task):
            while task not in self._arriving:
                self._post(self._expected[self._senders[task]].popleft())
            arrived, works = self._arriving.pop(task)
            _wait(works)
        return arrived

    def release_outputs(self, task: Task) -> None:
        """Free the outputs whose gradients arrived for a backward task.

        Raises:
            UsageError: the outputs were changed in place after they were sent.
        """
        sent = self._leaving.pop(_forward_of(task))
        _wait(work for _, _, work in sent)
        if any(tensor._version != version for tensor, version, _ in sent):
            raise UsageError(
                f"the output of stage {task.stage} was changed in place after the stage returned it, "
                f"while it was sent to stage {task.stage + 1}: return a clone of it"
            )

    def finish(self, keep: int = 0) -> None:
        """Wait until all that this rank sent has been received, apart from the latest `keep` messages."""
        with naming(f"rank {self.rank} of the pipeline waited for its messages to be received"):
            for task in list(self._leaving)[: len(self._leaving) - keep]:
                _wait(work for _, _, work in self._leaving.pop(task))

    def _naming(self, task: Task) -> AbstractContextManager[None]:
        sender = self._senders[task]
        return naming(f"rank {self.rank} of the pipeline waited for the {task} from rank {sender}")

    def _post(self, task: Task) -> None:
        """Start to receive a message."""
        sender = self._senders[task]
        source, group = self.row[sender], self.groups[sender > self.rank]
        if task.pass_ == "backward":
            arriving = Arguments(tuple(self._gradients(self._outputs.pop(_forward_of(task)))))
        else:
            header, work = self._headers.pop(task)
            work.wait()
            self._inputs[task] = pickle.loads(header.numpy().tobytes())
            arriving = self._inputs[task].zeros(self.device)
        self._arriving[task] = arriving, [dist.irecv(t.detach(), source, group) for t in arriving.distinct]

    def _gradients(self, outline: Arguments) -> list[Tensor]:
        """Return zeros of the shapes of the gradients that travel back for a message."""
        return [torch.zeros_like(t, device=self.device) for t in outline.trained]


def _wait(works: Iterable[dist.Work]) -> None:
    for work in works:
        work.wait()


def _forward_of(task: Task) -> Task:
    """Return the forward task that a backward task belongs to."""
    return replace(task, pass_="forward")


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor as a message carries it, without a copy if possible."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()

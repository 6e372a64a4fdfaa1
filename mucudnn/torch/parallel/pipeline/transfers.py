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
from mucudnn.torch.parallel.pipeline.arguments import Arguments, check_outputs
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
        peers = set(range(self.schedule.stages)) - {self.rank}
        self._expected = {peer: deque(self._sent_by(peer)) for peer in peers}
        self._headers: dict[Task, tuple[Tensor, dist.Work]] = {}
        for peer, tasks in self._expected.items():
            for task in tasks:
                if task.pass_ == "forward":
                    with self._naming(task, peer):
                        header = torch.empty(_HEADER, dtype=torch.uint8)
                        work = dist.irecv(header, self.row[peer], self.headers)
                        self._headers[task] = header, work
        self._arriving: dict[Task, tuple[Arguments | None, list[dist.Work]]] = {}
        # The tensors that were sent, each with the version that it had then.
        self._leaving: dict[Task, list[tuple[Tensor, int, dist.Work]]] = {}
        # The outlines of outputs and inputs, which say what gradients have yet to travel. A rank that failed
        # sends None in their place.
        self._outputs: dict[Task, Arguments | None] = {}
        self.inputs: dict[Task, Arguments | None] = {}

    def check(self, task: Task, outputs: Arguments) -> None:
        """Raise UsageError unless the result of a task can be sent if it is a stage's outputs."""
        if task.pass_ == "forward" and consumer(task, self.schedule) is not None:
            check_outputs(outputs, f"the output of stage {task.stage}", self.device)

    def send(self, task: Task, result: Arguments | None) -> None:
        """Send the result of a task to the rank that needs it: a stage's outputs, or its inputs' gradients.

        A rank that failed passes None, and sends a header that says so, or placeholders of gradients.
        """
        target = consumer(task, self.schedule)
        if target is None:
            return
        receiver = self.schedule.rank_of(target.stage, target.replica)
        with naming(f"rank {self.rank} of the pipeline sent the {task} to rank {receiver}"):
            if task.pass_ == "forward":
                self._send_outputs(task, receiver, result)
            else:
                placeholders = self._gradients(self.inputs.pop(_forward_of(task)))
                self._start(task, receiver, list(map(_plain, result.tensors if result else placeholders)))

    def receive(self, task: Task) -> Arguments | None:
        """Wait for the tensors that another rank sends for a task, and return them.

        They are the inputs of a stage, as leaves that require a gradient if it travels back, or the gradients
        of its outputs. Return None if the sender failed, and no tensors if no rank sends any.

        Raises MucudnnError if they do not arrive in time.
        """
        stage = task.stage + (-1 if task.pass_ == "forward" else 1)
        if not 0 <= stage < self.schedule.stages:
            return Arguments(())
        sender = self.schedule.rank_of(stage, task.replica)
        with self._naming(task, sender):
            while task not in self._arriving:
                self._post(self._expected[sender].popleft(), sender)
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

    def _send_outputs(self, task: Task, receiver: int, outputs: Arguments | None) -> None:
        outline = self._outputs[task] = outputs and outputs.outline()
        header = torch.frombuffer(bytearray(pickle.dumps(outline).ljust(_HEADER, b"\0")), dtype=torch.uint8)
        # A module may change a buffer that it returned, and no gradient shows that the buffer arrived.
        tensors = [
            _plain(t) if t.requires_grad else _plain(t).clone() for t in (outputs.distinct if outputs else ())
        ]
        self._start(task, receiver, tensors, header)

    def _start(self, task: Task, receiver: int, tensors: list[Tensor], *header: Tensor) -> None:
        group, to = self.groups[self.rank > receiver], self.row[receiver]
        parts = [*((part, self.headers) for part in header), *((tensor, group) for tensor in tensors)]
        self._leaving[task] = [(part, part._version, dist.isend(part, to, way)) for part, way in parts]

    def _naming(self, task: Task, sender: int) -> AbstractContextManager[None]:
        return naming(f"rank {self.rank} of the pipeline waited for the {task} from rank {sender}")

    def _sent_by(self, peer: int) -> Iterable[Task]:
        """Yield this rank's tasks that need a message from a peer, in the order in which the peer sends."""
        for task in self.schedule.orders[peer]:
            target = consumer(task, self.schedule)
            if target is not None and self.schedule.rank_of(target.stage, target.replica) == self.rank:
                yield target

    def _post(self, task: Task, sender: int) -> None:
        """Start to receive a message."""
        source = self.row[sender]
        arriving: Arguments | None
        if task.pass_ == "backward":
            arriving = Arguments(tuple(self._gradients(self._outputs.pop(_forward_of(task)))))
        else:
            header, work = self._headers.pop(task)
            work.wait()
            outline = self.inputs[task] = pickle.loads(header.numpy().tobytes())
            arriving = outline and outline.zeros(self.device)
        group, tensors = self.groups[sender > self.rank], arriving.distinct if arriving else ()
        self._arriving[task] = arriving, [dist.irecv(t.detach(), source, group) for t in tensors]

    def _gradients(self, outline: Arguments | None) -> list[Tensor]:
        """Return zeros of the shapes of the gradients that travel back for a message."""
        return [torch.zeros_like(t, device=self.device) for t in outline.trained] if outline else []


def _wait(works: Iterable[dist.Work]) -> None:
    for work in works:
        work.wait()


def _forward_of(task: Task) -> Task:
    """Return the forward task that a backward task belongs to."""
    return replace(task, pass_="forward")


def _plain(tensor: Tensor) -> Tensor:
    """Return a tensor as a message carries it, without a copy if possible."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()

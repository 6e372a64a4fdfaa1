"""The messages between ranks of a pipeline, in an order in which no two of them wait for each other.

NCCL matches the messages of two ranks by their order, not by a tag. So a receiver takes the messages of each
peer in the order in which that peer sends them, ahead of their use if need be. And NCCL runs all messages of
a communicator one after another. So messages up and down the ranks have a process group each: in one group,
two neighbours never send to each other at once.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from mucudnn.errors import MucudnnError
from mucudnn.solver.schedules import Schedule, Task
from mucudnn.torch.pipeline.shapes import Description


@dataclass(frozen=True)
class Directions:
    """The two process groups of a pipeline: one sends to higher ranks, the other one to lower ranks."""

    up: dist.ProcessGroup
    down: dist.ProcessGroup

    def between(self, sender: int, receiver: int) -> dist.ProcessGroup:
        """Return the group for messages from one rank of the pipeline to another."""
        return self.up if sender < receiver else self.down


def consumer(task: Task, schedule: Schedule) -> Task | None:
    """Return the task on another stage that needs this task's result; None if there is none."""
    step = 1 if task.pass_ == "forward" else -1
    stage = task.stage + step
    if not 0 <= stage < schedule.stages:
        return None
    return Task(task.pass_, task.micro_batch, stage, task.replica)


class Transfers:
    """One rank's messages for one mini-batch.

    Args:
        schedule: the orders of work.
        rank: this process's rank in the pipeline.
        directions: the groups; their ranks are those of the pipeline.
        inputs: each stage's inputs, which are what a forward task receives.
        device: where received tensors are allocated.
        timeout: how long to wait for a message.
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        directions: Directions,
        inputs: Sequence[tuple[Description, ...]],
        device: torch.device,
        timeout: timedelta,
    ) -> None:
        self._schedule, self._rank, self._directions = schedule, rank, directions
        self._inputs, self._device, self._timeout = inputs, device, timeout
        self._expected = {peer: deque(self._sent_by(peer)) for peer in range(schedule.stages) if peer != rank}
        self._arriving: dict[Task, tuple[list[Tensor], list[dist.Work]]] = {}
        self._leaving: list[tuple[list[Tensor], list[dist.Work]]] = []

    def send(self, task: Task, tensors: Iterable[Tensor]) -> None:
        """Send the result of a task of this rank to the rank that needs it."""
        target = consumer(task, self._schedule)
        assert target is not None
        receiver = self._schedule.rank_of(target.stage, target.replica)
        group = self._directions.between(self._rank, receiver)
        kept = [tensor.contiguous() for tensor in tensors]
        to = dist.get_global_rank(group, receiver)
        with _naming(f"rank {self._rank} of the pipeline sent the {task} to rank {receiver}"):
            self._leaving.append((kept, [dist.isend(tensor, to, group) for tensor in kept]))

    def receive(self, task: Task) -> list[Tensor]:
        """Return the tensors that another rank sends for a task of this rank; waits for them.

        Raises MucudnnError if they do not arrive in time.
        """
        sender = self._sender(task)
        with _naming(f"rank {self._rank} of the pipeline waited for the {task} from rank {sender}"):
            while task not in self._arriving:
                self._post(self._expected[sender].popleft(), sender)
            tensors, works = self._arriving.pop(task)
            for work in works:
                work.wait(self._timeout)
        return tensors

    def finish(self) -> None:
        """Wait until all that this rank sent has been received."""
        with _naming(f"rank {self._rank} of the pipeline waited for its messages to be received"):
            for _, works in self._leaving:
                for work in works:
                    work.wait(self._timeout)
        self._leaving.clear()

    def _sender(self, task: Task) -> int:
        step = -1 if task.pass_ == "forward" else 1
        return self._schedule.rank_of(task.stage + step, task.replica)

    def _sent_by(self, peer: int) -> Iterable[Task]:
        """Yield this rank's tasks that need a message of a peer, in the order in which the peer sends."""
        for task in self._schedule.orders[peer]:
            target = consumer(task, self._schedule)
            if target is not None and self._schedule.rank_of(target.stage, target.replica) == self._rank:
                yield target

    def _post(self, task: Task, sender: int) -> None:
        group = self._directions.between(sender, self._rank)
        tensors = [d.allocate(self._device) for d in received_by(task, self._inputs)]
        source = dist.get_global_rank(group, sender)
        self._arriving[task] = tensors, [dist.irecv(tensor, source, group) for tensor in tensors]


@contextmanager
def _naming(what: str) -> Iterator[None]:
    """Raise a MucudnnError that names what failed. After a rank has ended, messages fail as they start."""
    try:
        yield
    except RuntimeError as error:
        raise MucudnnError(f"{what} in vain: another rank has failed or stopped ({error})") from error


def received_by(task: Task, inputs: Sequence[tuple[Description, ...]]) -> list[Description]:
    """Return what a task receives: a stage's inputs, or the gradients of its outputs."""
    if task.pass_ == "forward":
        return list(inputs[task.stage])
    return [d for d in inputs[task.stage + 1] if d.has_gradient]


def make_directions(members: Sequence[Sequence[int]], rank: int) -> Directions:
    """Return this process's groups. Every process must call this with the same members.

    Args:
        members: the global ranks of each pipeline, in the order of its stages.
        rank: this process's global rank.
    """
    found: Mapping[str, dist.ProcessGroup] = {}
    for ranks in members:
        # All processes make all groups, because new_group is a collective operation of the whole world.
        made = {name: dist.new_group(list(ranks)) for name in ("up", "down")}
        if rank in ranks:
            found = made
    return Directions(**found)

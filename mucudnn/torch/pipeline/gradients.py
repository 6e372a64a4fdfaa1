"""The exchange between ranks that hold the same stage: weights first, then gradients, buffers, the loss."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mucudnn.solver.schedules import Schedule


class Reduction:
    """The exchange between all copies of a rank's stages: the other replica's, and other pipelines' copies.

    Rank r and rank D-1-r of every pipeline hold copies of the same two stages, so they form one group, in
    which the stages are exchanged in ascending order. With one replica a group holds one stage.

    Args:
        schedule: the schedule.
        pipes: the global ranks of each pipeline, by stage; the same on every process.
        rank: this process's rank in its pipeline.
        modules: the stages that it holds.
        timeout: how long an exchange may take.
    """

    def __init__(
        self,
        schedule: Schedule,
        pipes: Sequence[Sequence[int]],
        rank: int,
        modules: Mapping[tuple[int, int], nn.Module],
        timeout: timedelta,
    ) -> None:
        self._pipelines, self._replicas, self._modules = len(pipes), schedule.replicas, modules
        self._rank, self._timeout = rank, timeout
        self._group = self._make_groups(schedule, pipes)
        self._everyone = sorted(r for row in pipes for r in row)
        self._world = dist.new_group(self._everyone, timeout=timeout)
        # Every member goes through the same stages in the same order.
        self._stages = {stage: module for (stage, _), module in sorted(modules.items())}
        self._owner = {stage: pipes[0][schedule.rank_of(stage, 0)] for stage in self._stages}

    def copy_weights(self) -> None:
        """Give all copies of a stage the weights and buffers of the first pipeline's first replica."""
        for stage, module in self._stages.items():
            for tensor in (*module.parameters(), *module.buffers()):
                if dist.get_world_size(self._group) > 1:
                    dist.broadcast(tensor.detach(), self._owner[stage], self._group)

    def sum_gradients(self) -> None:
        """Add the gradients of the replicas, and average them over the pipelines."""
        for module in self._stages.values():
            gradients = []
            for parameter in module.parameters():
                if parameter.requires_grad:
                    if parameter.grad is None:  # a copy elsewhere may have one
                        parameter.grad = torch.zeros_like(parameter)
                    gradients.append(parameter.grad)
            self._all_reduce(gradients, self._pipelines)

    def average_buffers(self) -> None:
        """Give all copies of a stage the mean of their floating-point buffers, such as running statistics."""
        for module in self._stages.values():
            self._all_reduce(
                [b for b in module.buffers() if b.is_floating_point()], dist.get_world_size(self._group)
            )

    def mean_loss(self, loss: float) -> Tensor:
        """Return the sum of all ranks' parts of the loss, as a mean over the pipelines."""
        device = next((p.device for m in self._modules.values() for p in m.parameters()), torch.device("cpu"))
        total = torch.tensor(loss, dtype=torch.float64, device=device)
        dist.all_reduce(total, group=self._world)
        return total / self._pipelines

    def _all_reduce(self, tensors: Sequence[Tensor], divisor: int) -> None:
        """Sum tensors over the group, and divide them; tensors of one type travel together."""
        if dist.get_world_size(self._group) == 1:
            return
        for same in _by_type(tensors):
            flat = torch.cat([tensor.flatten() for tensor in same])
            dist.all_reduce(flat, group=self._group)
            flat /= divisor
            for tensor, part in zip(same, flat.split([t.numel() for t in same]), strict=True):
                tensor.copy_(part.view_as(tensor))

    def _make_groups(self, schedule: Schedule, pipes: Sequence[Sequence[int]]) -> dist.ProcessGroup:
        """Make all groups, as every process must, and return the one of this process."""
        stages, found = schedule.stages, None
        for first in range((stages + 1) // 2 if schedule.replicas == 2 else stages):
            members = {first, stages - 1 - first} if schedule.replicas == 2 else {first}
            group = dist.new_group(
                sorted(row[member] for row in pipes for member in members), timeout=self._timeout
            )
            if self._rank in members:
                found = group
        assert found is not None
        return found


def _by_type(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.dtype, []).append(tensor)
    return list(groups.values())

"""The exchange between ranks that hold the same weights: first weights, then gradients, buffers, the loss."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mucudnn.solver.devices.schedules import Schedule
from mucudnn.torch.parallel.pipeline.agreement import Agreement
from mucudnn.torch.parallel.pipeline.ties import Place, agree_on_ties
from mucudnn.torch.parallel.ranks import make_group, naming

_EXCHANGED = "this rank exchanged weights or gradients with the ranks of the pipelines"


@dataclass(eq=False)
class Reduction:
    """The exchange between all copies of a tensor, in both replicas, in other pipelines and other stages.

    A tensor has copies on all ranks that hold a stage in which it has a place. Tensors with the same stages
    travel together, and every rank goes through the sets of stages in the same order.

    Attributes:
        schedule: the schedule.
        pipes: the global ranks of each pipeline, by stage; the same on every process.
        modules: the stages that this rank holds, {(stage, replica): module}.
        stages: all stages.
        device: where sums over the ranks are computed.
        agreement: the connection to all ranks.
        timeout: how long to wait for other ranks.

    Raises:
        UsageError: the ranks cannot know whether two stages share a parameter.
    """

    schedule: Schedule
    pipes: Sequence[Sequence[int]]
    modules: Mapping[tuple[int, int], nn.Module]
    stages: Sequence[nn.Module]
    device: torch.device
    agreement: Agreement
    timeout: timedelta

    def __post_init__(self) -> None:
        self._stages = {stage: module for (stage, _), module in sorted(self.modules.items())}
        self._ties = agree_on_ties(self.stages, self.agreement)
        self._groups = self._make_groups()

    @torch.no_grad()
    def copy(self, *, parameters: bool) -> None:
        """Give all copies of parameters or buffers the values of the first stage with them.

        DDP does the same with buffers, such as running statistics.
        """
        for stages, tensors in self._tensors(parameters):
            group = self._groups[stages]
            if group is not None:
                # Bytes, because not every backend sends every type.
                flat = torch.cat([copies[0].flatten() for copies in tensors])
                with naming(_EXCHANGED):
                    dist.broadcast(flat.view(torch.uint8), self.pipes[0][stages[0]], group)
                for copies, part in zip(tensors, flat.split([c[0].numel() for c in tensors]), strict=True):
                    copies[0].copy_(part.view(copies[0].shape))
            for first, *others in tensors:
                for other in others:
                    other.copy_(first)

    @torch.no_grad()
    def sum_gradients(self, factor: float) -> None:
        """Add the gradients of all copies in a pipeline, times a factor, and average them over the pipelines.

        A parameter that has no gradient on any rank still has none afterwards. Exchanged gradients are dense.
        """
        for stages, tensors in self._tensors(True):
            group, trained = self._groups[stages], [copies for copies in tensors if copies[0].requires_grad]
            if group is None and all(len(copies) == 1 for copies in trained):
                for (parameter,) in trained:
                    if parameter.grad is not None and factor != 1.0:
                        parameter.grad.mul_(factor)
                continue
            if not trained:
                continue
            # Counted, because another rank's copy may have a gradient when this rank's has none.
            values = [torch.tensor([float(sum(p.grad is not None for p in copies)) for copies in trained])]
            for copies in trained:
                values += [sum(torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in copies)]
            flat = torch.cat([value.flatten().to(trained[0][0]) for value in values])
            flat[len(trained) :] *= factor / len(self.pipes)  # before the sum, which may overflow
            if group is not None:
                with naming(_EXCHANGED):
                    dist.all_reduce(flat, group=group)
            present, *sums = flat.split([value.numel() for value in values])
            for copies, total, is_present in zip(trained, sums, present.tolist(), strict=True):
                for parameter in copies:
                    if not is_present:
                        parameter.grad = None
                    elif parameter.grad is None or parameter.grad.is_sparse:
                        parameter.grad = total.view(parameter.shape).clone()
                    else:
                        parameter.grad.copy_(total.view(parameter.shape))

    def gradient_norm(self, norm_type: float) -> Tensor:
        """Return the norm of the whole model's gradients, the same on every rank. Each weight counts once."""
        gradients = [
            copies[0].grad
            for stages, tensors in self._tensors(True)
            if dist.get_rank() == self.pipes[0][stages[0]]
            for copies in tensors
            if copies[0].grad is not None
        ]
        values = [g.coalesce().values() if g.is_sparse else g for g in gradients]
        own = [float(torch.linalg.vector_norm(value, norm_type)) for value in values]
        gathered = self.agreement.gather((own, {value.dtype for value in values})).values()
        norms = [norm for rank, _ in gathered for norm in rank]
        total = torch.linalg.vector_norm(torch.tensor(norms or [0.0], dtype=torch.float64), norm_type)
        # PyTorch's norm of 16-bit gradients has 16 bits, too few for a sum over all ranks.
        types = {torch.float32}.union(*(types for _, types in gathered))
        return total.to(self.device, reduce(torch.promote_types, types).to_real())

    def _tensors(self, is_parameter: bool) -> Iterator[tuple[tuple[int, ...], list[list[Tensor]]]]:
        """Yield sets of stages in order, with this rank's copies of the tensors of a type that they share."""
        copies_at: dict[tuple[Place, ...], list[Tensor]] = {}
        for stage, module in self._stages.items():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if isinstance(tensor, nn.Parameter) == is_parameter:
                    place = stage, name
                    copies = copies_at.setdefault(self._ties.get(place, (place,)), [])
                    if not any(tensor is copy for copy in copies):
                        copies.append(tensor)
        together: dict[tuple[tuple[int, ...], str], list[list[Tensor]]] = {}
        for places, copies in sorted(copies_at.items(), key=lambda item: item[0]):
            together.setdefault((_stages_of(places), str(copies[0].dtype)), []).append(copies)
        for stages, dtype in sorted(together):
            yield stages, together[stages, dtype]

    def _make_groups(self) -> dict[tuple[int, ...], dist.ProcessGroup | None]:
        """Make the groups for all sets of stages, as every process must. A set on a single rank has None."""
        made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        by_ranks: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        stages_alone = {(stage,) for stage in range(self.schedule.stages)}
        for stages in sorted(stages_alone | set(map(_stages_of, self._ties.values()))):
            replicas = range(self.schedule.replicas)
            holders = {self.schedule.rank_of(stage, replica) for stage in stages for replica in replicas}
            ranks = tuple(sorted(row[holder] for row in self.pipes for holder in holders))
            if ranks not in by_ranks:
                by_ranks[ranks] = make_group(ranks, self.timeout) if len(ranks) > 1 else None
            made[stages] = by_ranks[ranks]
        return made


def _stages_of(places: Iterable[Place]) -> tuple[int, ...]:
    return tuple(sorted({stage for stage, _ in places}))

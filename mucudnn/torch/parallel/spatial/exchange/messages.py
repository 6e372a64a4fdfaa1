"""Messages between the ranks of a process group: rows to single ranks, and sums over all.

On gloo, rows and small sums take no other messages: `watching` finds ranks that disagree. NCCL has no tags,
so the ranks compare what they are about to do, once for each thing.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from mucudnn.torch.parallel.spatial.exchange.agreement import agree, talks_on_cpu, wait

_SMALL = 1 << 16  # bytes; a larger tensor is added up by a ring
Pairs = Sequence[tuple[int, Tensor]]  # a rank in the group, and a contiguous tensor


def move(received: Pairs, sent: Pairs, device: torch.device, name: str, description: str) -> None:
    """Receive into tensors and send others, on the device of these tensors. Raises DivergedError.

    All ranks of the group have to call this, also those without messages.
    """
    group = _resolve_process_group(name)
    if not talks_on_cpu(group, device):
        agree(name, description, device)
        order = [dist.P2POp(dist.irecv, one, group=group, group_peer=peer) for peer, one in received]
        order += [dist.P2POp(dist.isend, one, group=group, group_peer=peer) for peer, one in sent]
        if order:
            wait(group, name, description, device, lambda _: dist.batch_isend_irecv(order))
        return
    arrived = [
        one if one.device.type == "cpu" else torch.empty_like(one, device="cpu") for _, one in received
    ]
    messages = [(group.recv, peer, one) for (peer, _), one in zip(received, arrived, strict=True)]
    messages += [(group.send, peer, one.cpu()) for peer, one in sent]
    wait(
        group, name, description, device,
        lambda tag: [call([_without_complex(one)], peer, tag) for call, peer, one in messages],
    )  # fmt: skip
    for (_, one), found in zip(received, arrived, strict=True):
        if one is not found:
            one.copy_(found)


def _without_complex(x: Tensor) -> Tensor:
    return torch.view_as_real(x) if x.is_complex() else x  # gloo sends no complex numbers


def sum_over(x: Tensor, groups: str) -> Tensor:
    """Return the sum of a tensor over the ranks of each group; their names have commas between."""
    result = x.clone(memory_format=torch.contiguous_format)
    for name in groups.split(","):
        group = _resolve_process_group(name)
        description = f"sum of {tuple(x.shape)}, {str(x.dtype).removeprefix('torch.')}"
        is_small = x.nbytes <= _SMALL and talks_on_cpu(group, x.device)
        result = (_sum_of_all if is_small else _sum_by_ring)(result, group, name, description)
    return result


def _sum_by_ring(x: Tensor, group: Any, name: str, description: str) -> Tensor:
    """Return the sum, and overwrite the tensor."""
    agree(name, description, x.device)
    moved = x.cpu() if talks_on_cpu(group, x.device) else x
    wait(group, name, description, moved.device, lambda _: dist.all_reduce(moved, group=group, async_op=True))
    return moved.to(x.device)


def _sum_of_all(x: Tensor, group: Any, name: str, description: str) -> Tensor:
    """Return the sum, with one message to each rank: for few values a ring only takes longer."""
    me = group.rank()
    each = [x if rank == me else torch.empty_like(x) for rank in range(group.size())]
    others = [rank for rank in range(group.size()) if rank != me]
    move([(rank, each[rank]) for rank in others], [(rank, x) for rank in others], x.device, name, description)
    result = each[0].clone()
    for one in each[1:]:  # in one order, so that all ranks get the same bits
        result += one
    return result

"""Messages between the ranks of a process group: rows to single ranks, and sums over all.

On gloo, rows and small sums need no further messages, because `watching` finds ranks that disagree. NCCL has
no tags, so the ranks compare descriptions of what they are about to do, once for each description.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from mucudnn.torch.parallel.spatial.exchange.agreement import require_agreement, talks_on_cpu, wait

_SMALL = 1 << 16  # bytes; a larger tensor is added up by a ring
Pairs = Sequence[tuple[int, Tensor]]  # a rank in the group, and a contiguous tensor


def described(shape: Sequence[int], dtype: torch.dtype) -> str:
    """Return a text such as `(2, 3), float32`."""
    return f"{tuple(shape)}, {str(dtype).removeprefix('torch.')}"


def move(received: Pairs, sent: Pairs, device: torch.device, name: str, description: str) -> None:
    """Receive into tensors and send others, on the device of these tensors. Raises DivergedError.

    All ranks of the group have to call this, also those without messages.
    """
    group = _resolve_process_group(name)
    if not talks_on_cpu(group, device):
        require_agreement(name, description, device)
        order = [dist.P2POp(dist.irecv, x, group=group, group_peer=peer) for peer, x in received]
        order += [dist.P2POp(dist.isend, x, group=group, group_peer=peer) for peer, x in sent]
        if order:
            wait(group, name, description, device, lambda _: dist.batch_isend_irecv(order))
        return
    on_cpu = [x if x.device.type == "cpu" else torch.empty_like(x, device="cpu") for _, x in received]
    messages = [(group.recv, peer, x) for (peer, _), x in zip(received, on_cpu, strict=True)]
    messages += [(group.send, peer, x.cpu()) for peer, x in sent]
    wait(
        group, name, description, device,
        lambda tag: [call([_without_complex(x)], peer, tag) for call, peer, x in messages],
    )  # fmt: skip
    for (_, x), arrived in zip(received, on_cpu, strict=True):
        if x is not arrived:
            x.copy_(arrived)


def _without_complex(x: Tensor) -> Tensor:
    return torch.view_as_real(x) if x.is_complex() else x  # gloo sends no complex numbers


def sum_over(x: Tensor, groups: str) -> Tensor:
    """Return the sum of a tensor over the ranks of each group. `groups` has the names, joined by commas."""
    result = x.clone(memory_format=torch.contiguous_format)
    for name in groups.split(","):
        group = _resolve_process_group(name)
        is_small = x.nbytes <= _SMALL and talks_on_cpu(group, x.device)
        add = _sum_of_all if is_small else _sum_by_ring
        result = add(result, group, name, f"sum of {described(x.shape, x.dtype)}")
    return result


def _sum_by_ring(x: Tensor, group: Any, name: str, description: str) -> Tensor:
    """Return the sum over a group, and overwrite the tensor."""
    require_agreement(name, description, x.device)
    moved = x.cpu() if talks_on_cpu(group, x.device) else x
    wait(group, name, description, moved.device, lambda _: dist.all_reduce(moved, group=group, async_op=True))
    return moved.to(x.device)


def _sum_of_all(x: Tensor, group: Any, name: str, description: str) -> Tensor:
    """Return the sum over a group with a message to each rank, which is faster than a ring for few values."""
    me = group.rank()
    each = [x if rank == me else torch.empty_like(x) for rank in range(group.size())]
    others = [rank for rank in range(group.size()) if rank != me]
    move([(rank, each[rank]) for rank in others], [(rank, x) for rank in others], x.device, name, description)
    result = each[0].clone()
    for part in each[1:]:  # in the order of the ranks, so that all of them get the same bits
        result += part
    return result

"""Messages between the ranks of a process group: rows to single ranks, and sums over all."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from mucudnn.torch.spatial.agreement import agree, talks_on_cpu, wait


def move(messages: list[tuple[str, Tensor, int]], name: str, description: str) -> None:
    """Send and receive contiguous tensors: ("send" or "receive", tensor, rank in the group)."""
    if not messages:
        return
    group = _resolve_process_group(name)
    calls = {"send": dist.isend, "receive": dist.irecv}
    staged = [
        (
            way,
            tensor.cpu() if tensor.is_cuda and talks_on_cpu(group, tensor.device) else tensor,
            tensor,
            peer,
        )
        for way, tensor, peer in messages
    ]
    order = [dist.P2POp(calls[way], sent, group=group, group_peer=peer) for way, sent, _, peer in staged]
    wait(group, name, description, staged[0][1].device, lambda: dist.batch_isend_irecv(order))
    for way, sent, tensor, _ in staged:
        if way == "receive" and sent is not tensor:
            tensor.copy_(sent)


def sum_over(x: Tensor, groups: str) -> Tensor:
    """Return the sum of a tensor over the ranks of each group; their names have commas between."""
    result = x.clone(memory_format=torch.contiguous_format)
    for name in groups.split(","):
        group = _resolve_process_group(name)
        description = f"sum of {tuple(x.shape)}, {str(x.dtype).removeprefix('torch.')}"
        agree(name, description, x.device)
        moved = result.cpu() if x.is_cuda and talks_on_cpu(group, x.device) else result
        wait(
            group, name, description, moved.device,
            lambda moved=moved, group=group: dist.all_reduce(moved, group=group, async_op=True),
        )  # fmt: skip
        if moved is not result:
            result.copy_(moved)
    return result

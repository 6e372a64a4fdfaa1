"""The agreement of a group's ranks: they compare digests of what they are about to do.

If they disagree, all of them raise the same error, so none waits for another forever.
"""

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.ranks import naming
from mucudnn.torch.parallel.spatial.exchange import watching

DEFAULT_TIMEOUT = 300.0
_timeouts: dict[str, float] = {}  # group name -> seconds
_agreed: set[tuple[str, str]] = set()  # (group name, description), for groups that compare on a device


class DivergedError(UsageError, RuntimeError):
    """The ranks of a group do not agree about what to do, or one of them does not take part."""


def set_timeout(group: str, seconds: float) -> None:
    """Set how long the ranks of a group wait for each other."""
    _timeouts[group] = seconds


def require_agreement(group_name: str, description: str, device: torch.device) -> None:
    """Raise DivergedError on every rank of a group unless all gave the same description."""
    group = _resolve_process_group(group_name)
    on_cpu = talks_on_cpu(group, device)
    if not on_cpu:  # compared once, because reading the answer makes the host wait for the device
        if (group_name, description) in _agreed:
            return
        _agreed.add((group_name, description))
    digest = int.from_bytes(hashlib.blake2b(description.encode(), digest_size=7).digest(), "big")
    device = torch.device("cpu") if on_cpu else device
    own = torch.tensor([digest], dtype=torch.int64, device=device)
    digests = [torch.empty_like(own) for _ in range(group.size())]
    wait(
        group, group_name, description, device, lambda _: dist.all_gather(digests, own, group, async_op=True)
    )
    if len(set(map(int, digests))) == 1:
        return
    if on_cpu:
        watching.settle(group_name)
    texts: list[Any] = [None] * group.size()
    with naming("this rank asked what the others do"):
        dist.all_gather_object(texts, description, group)
    raise _diverged(watching.shown_by_rank(dict(enumerate(texts))))


def _diverged(shown: str) -> DivergedError:
    return DivergedError(
        "the ranks do not agree about what comes next, and must run the same layers on the same tensors: "
        + shown
    )


def wait(group: Any, name: str, description: str, device: torch.device, start: Callable[[int], Any]) -> None:
    """Start communication and wait for it. `start` takes a tag, and returns torch.distributed's works.

    Raises DivergedError if the communication fails or takes too long, or if another rank does something else.
    """
    seconds = _timeouts.get(name, DEFAULT_TIMEOUT)
    on_cpu = talks_on_cpu(group, device)
    tag = watching.begin(group, name, description) if on_cpu else 0
    try:
        works = start(tag)
        for work in works if isinstance(works, list) else [works]:
            if on_cpu:
                work.wait(timedelta(seconds=seconds))
            else:
                work.wait()
    except RuntimeError as error:
        differing = watching.disagreement(name) if on_cpu else ""
        if differing:
            raise _diverged(differing) from None
        cause = str(error).splitlines()[0]
        raise DivergedError(
            f"another rank did not take part within {seconds:g} s, or has ended ({cause}), in: {description}"
        ) from None
    finally:
        if on_cpu:
            watching.end(name)


def talks_on_cpu(group: Any, device: torch.device) -> bool:
    """Return whether a process group exchanges a device's tensors on the CPU, where a wait can time out."""
    return device.type == "cpu" or "nccl" not in dist.get_backend(group)

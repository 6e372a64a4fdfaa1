"""All ranks of a group compare a digest of what they are about to do.

Ranks that disagree all raise the same error, and each wait for another rank ends.
"""

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.exchange import watching

DEFAULT_TIMEOUT = 300.0
_timeouts: dict[str, float] = {}  # group name -> seconds
_agreed: set[tuple[str, str]] = set()  # (group name, description); for groups in which a check is costly


class DivergedError(UsageError, RuntimeError):
    """The ranks of a group do not agree about what to do, or one of them does not take part."""


def set_timeout(group: str, seconds: float) -> None:
    """Set how long the ranks of a group wait for each other."""
    _timeouts[group] = seconds


def agree(group_name: str, description: str, device: torch.device) -> None:
    """Raise DivergedError on every rank of a group unless all gave the same description."""
    group = _resolve_process_group(group_name)
    on_cpu = talks_on_cpu(group, device)
    if not on_cpu:  # reading the answer would make the device wait at every call: once has to be enough
        if (group_name, description) in _agreed:
            return
        _agreed.add((group_name, description))
    digest = int.from_bytes(hashlib.blake2b(description.encode(), digest_size=7).digest(), "big")
    where = torch.device("cpu") if on_cpu else device
    mine = torch.tensor([digest], dtype=torch.int64, device=where)
    found = [torch.empty_like(mine) for _ in range(group.size())]
    wait(group, group_name, description, where, lambda _: dist.all_gather(found, mine, group, async_op=True))
    if len({int(one) for one in found}) == 1:
        return
    if on_cpu:
        watching.settle(group_name)
    texts: list[Any] = [None] * group.size()
    dist.all_gather_object(texts, description, group)
    raise _diverged(watching.shown_by_rank(dict(enumerate(texts))))


def _diverged(shown: str) -> DivergedError:
    return DivergedError(
        "the ranks do not agree about what comes next, and must run the same layers on the same tensors: "
        + shown
    )


def wait(group: Any, name: str, description: str, device: torch.device, start: Callable[[int], Any]) -> None:
    """Start a piece of communication and wait for it. `start` gets a tag, and returns its works.

    Raises DivergedError if it fails or takes too long, or if another rank does something else.
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
        found = watching.disagreement(name) if on_cpu else ""
        if found:
            raise _diverged(found) from None
        cause = str(error).splitlines()[0]
        raise DivergedError(
            f"another rank did not take part within {seconds:g} s, or has ended ({cause}), in: {description}"
        ) from None
    finally:
        if on_cpu:
            watching.end(name)


def talks_on_cpu(group: Any, device: torch.device) -> bool:
    """Return whether a process group exchanges this device's tensors on the CPU: then a wait can time out."""
    return device.type == "cpu" or "nccl" not in dist.get_backend(group)

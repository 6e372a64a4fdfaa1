"""A watch over ranks that wait for each other: ranks that disagree raise within seconds.

A rank numbers its exchanges with a group and notes what each of them does. The tag of a message is a digest
of the number and the note, so rows never arrive in a different exchange, and no further message is needed. If
a wait lasts longer than PATIENCE, a thread publishes the rank's notes in the process group's store and
compares the notes of all ranks. If two ranks noted different things under the same number, it closes the
connections, so that the wait raises. Nothing happens to a rank that is merely slow.
"""

import atexit
import hashlib
import json
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

PATIENCE = 1.0  # seconds
_POLL = 0.25  # seconds
_LAST_LOOK = 10.0  # seconds, after which a program ends although the store does not answer
_KEPT = 64  # notes, because a rank is ahead of another by fewer exchanges than the group has ranks
_CLOSING_TAG = 2**31 - 1


@dataclass
class _Watch:
    """The exchanges of this rank with one group."""

    group: Any
    number: int = 0
    notes: deque[tuple[int, str]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    since: float | None = None  # the time at which the wait began
    disagreement: str = ""


_watches: dict[str, _Watch] = {}
_thread: threading.Thread | None = None
_ending = threading.Event()


def begin(group: Any, name: str, description: str) -> int:
    """Note an exchange that begins, and return the tag of its messages."""
    watch = _watches.get(name)
    if watch is None or watch.group is not group:
        watch = _watches[name] = _Watch(group)
    watch.number += 1
    watch.notes.append((watch.number, description))
    _watch_all()
    watch.since = time.monotonic()
    digest = hashlib.blake2b(f"{watch.number} {description}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") % _CLOSING_TAG


def end(name: str) -> None:
    """Note that the last exchange with a group has ended."""
    _watches[name].since = None


def settle(name: str) -> None:
    """Drop the last note, in which the ranks of the group differ: all of them know, and may go on."""
    _watches[name].notes.pop()


def disagreement(name: str) -> str:
    """Return the notes of all ranks under the first number at which they differ, or "" if they agree."""
    watch = _watches[name]
    with suppress(RuntimeError):  # the rank that serves the store has ended
        watch.disagreement = watch.disagreement or _compare(watch)
    return watch.disagreement


def store() -> Any:
    """Return the store in which ranks publish their notes."""
    return _get_default_store()


def key_of(group: Any, rank: int) -> str:
    """Return the key of a rank's notes."""
    return f"mucudnn.spatial/{group.group_name}/{dist.get_process_group_ranks(group)}/{rank}"


def _compare(watch: _Watch) -> str:
    group, board = watch.group, store()
    board.set(key_of(group, group.rank()), json.dumps(list(watch.notes)))
    published = {}
    for rank in range(group.size()):
        if board.check([key_of(group, rank)]):
            published[rank] = dict(json.loads(board.get(key_of(group, rank))))
    for number, _ in list(watch.notes):
        texts = {rank: notes[number] for rank, notes in published.items() if number in notes}
        if len(set(texts.values())) > 1:
            return shown_by_rank(texts)
    return ""


def shown_by_rank(texts: dict[int, str]) -> str:
    """Return a line with the text of each rank of a group, in which ranks with the same text share it."""
    ranks: dict[str, list[str]] = {}
    for rank, text in texts.items():
        ranks.setdefault(text, []).append(str(rank))
    return "; ".join(
        f"rank{'s' if len(same) > 1 else ''} {', '.join(same)} of the group: {text}"
        for text, same in ranks.items()
    )


def _watch_all() -> None:
    """Start the thread if it does not run, as in a forked child."""
    global _thread, _ending
    if _thread is None or not _thread.is_alive():
        _ending = threading.Event()  # a fork may have copied the former one with its lock held
        _thread = threading.Thread(target=_look, args=(_ending,), name="mucudnn.spatial", daemon=True)
        _thread.start()


@atexit.register
def _stop_watching() -> None:
    """Stop the thread, because a process whose thread is inside PyTorch while Python ends is aborted."""
    if _thread is not None and _thread.is_alive():
        _ending.set()
        _thread.join(_LAST_LOOK)


def _look(ending: threading.Event) -> None:
    while not ending.wait(_POLL):
        for name, watch in list(_watches.items()):
            since = watch.since
            if since is None or time.monotonic() - since < PATIENCE:
                continue
            if disagreement(name) and watch.since == since:
                watch.since = None
                _close(watch.group)


def _close(group: Any) -> None:
    """End all waits for messages, with waits that take too long, after which gloo closes a connection."""
    for peer in range(group.size()):
        if peer != group.rank():
            with suppress(RuntimeError):
                group.recv([torch.empty(1)], peer, _CLOSING_TAG).wait(timedelta(milliseconds=1))

"""Worlds of real processes: each rank is forked from a server that has imported PyTorch already."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from programs import HANGS

_context = multiprocessing.get_context("forkserver")
# Only installed modules, because the server does not see the path of the tests.
_context.set_forkserver_preload(
    ["mucudnn.torch.spatial", "torch.distributed.tensor", "torch.distributed.fsdp", "torch.nn.parallel"]
)


@dataclass
class Outcome:
    """The value that a rank returned or the error that it raised, and the seconds that it took."""

    value: Any
    error: str | None
    seconds: float


def run(world: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run a function on every rank of a new world, and return the values. Raises AssertionError."""
    outcomes = outcomes_of(world, function, *args)
    failed = [f"rank {rank}: {outcome.error}" for rank, outcome in enumerate(outcomes) if outcome.error]
    assert not failed, "\n".join(failed)
    return [outcome.value for outcome in outcomes]


def outcomes_of(world: int, function: Callable[..., Any], *args: Any) -> list[Outcome]:
    """Run a function on every rank of a new world. A rank that hangs is ended with an error."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(world):
            ours, theirs = _context.Pipe(duplex=False)
            place = str(Path(folder) / "store")
            process = _context.Process(target=_main, args=(theirs, place, rank, world, function, args))
            process.start()
            theirs.close()
            ranks.append((process, ours))
        end = time.monotonic() + HANGS
        outcomes = [_receive(process, ours, end) for process, ours in ranks]
        for process, _ in ranks:
            process.join(max(end - time.monotonic(), 0.1))
            if process.is_alive():
                process.kill()
                process.join()
    return outcomes


def _receive(process: Any, ours: Connection, end: float) -> Outcome:
    if not wait([ours], max(end - time.monotonic(), 0)):
        process.kill()
        return Outcome(None, "the rank did not end in time", float("inf"))
    try:
        return pickle.loads(ours.recv_bytes())
    except EOFError:
        process.join()
        return Outcome(None, f"the rank ended with {process.exitcode}", 0.0)


def _main(
    theirs: Connection, place: str, rank: int, world: int, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"})
    started = time.monotonic()
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{place}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=HANGS),
        )
        value, error = function(*args), None
    except BaseException as failure:
        lines = traceback.format_exc().splitlines()
        value, error = None, f"{type(failure).__name__}: {failure}\n" + "\n".join(lines[-6:])
    # Plain pickle, because multiprocessing sends a tensor as a file that this process must keep open.
    theirs.send_bytes(pickle.dumps(Outcome(value, error, time.monotonic() - started)))
    theirs.close()
    os._exit(0)  # skips the shutdown of gloo, which would wait for ranks that failed

"""Processes with torch.distributed between them, started once for many tests, because torch loads slowly."""

from __future__ import annotations

import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing

MOST = 4
TIMEOUT = 60.0  # seconds for one function on all ranks


class FailedError(AssertionError):
    """A function raised an error on some rank; the message has each rank's traceback."""


class Processes:
    """Up to `MOST` processes that run functions together, each with its rank."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._tasks = [context.Queue() for _ in range(MOST)]
        self._results = context.Queue()
        self._workers = [
            context.Process(target=_serve, args=(rank, self._tasks[rank], self._results), daemon=True)
            for rank in range(MOST)
        ]
        for worker in self._workers:
            worker.start()

    def run(self, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call `function(*arguments)` on each of `world` ranks, one process group. Return the results.

        Raises FailedError if it raises an error on any rank, and if it takes longer than `TIMEOUT` seconds.
        """
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(world):
                self._tasks[rank].put((world, str(Path(folder) / "store"), function, arguments))
            outcomes: dict[int, tuple[bool, Any]] = {}
            until = time.monotonic() + TIMEOUT
            while len(outcomes) < world:
                try:
                    rank, fine, value = self._results.get(timeout=max(0.1, until - time.monotonic()))
                except queue.Empty:
                    self.stop()
                    missing = sorted(set(range(world)) - set(outcomes))
                    raise FailedError(
                        f"ranks {missing} did not end within {TIMEOUT:.0f} s: {outcomes}"
                    ) from None
                outcomes[rank] = fine, value
        failures = [f"rank {rank}: {value}" for rank, (fine, value) in sorted(outcomes.items()) if not fine]
        if failures:
            raise FailedError("\n".join(failures))
        return [outcomes[rank][1] for rank in range(world)]

    def stop(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.kill()
        for worker in self._workers:
            worker.join()


def _serve(rank: int, tasks: Queue[Any], results: Queue[Any]) -> None:
    torch.set_num_threads(1)
    while True:
        world, store, function, arguments = tasks.get()
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{store}",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=TIMEOUT / 2),
            )
            dist.barrier()  # no rank leaves while another one still connects
            try:
                results.put((rank, True, function(*arguments)))
            finally:
                dist.destroy_process_group()
        except Exception:
            results.put((rank, False, traceback.format_exc()))

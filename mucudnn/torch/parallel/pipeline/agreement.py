"""The agreement of all ranks: whether a step can begin, and whether any rank failed.

A rank that fails in the middle of a step sends placeholders until the step ends, when all ranks raise an
error.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from mucudnn.errors import MucudnnError, UsageError
from mucudnn.torch.parallel.ranks import make_group, naming

T = TypeVar("T")
_ASKED = "this rank asked all ranks of the pipeline"


class Agreement:
    """The connection of a rank to all other ranks.

    Every process must construct it, because that makes a process group.

    Args:
        pipes: the global ranks of each pipeline.
        timeout: how long to wait for the other ranks.

    Attributes:
        group: the process group of all ranks, on gloo, so that no device waits for its messages.
        timeout: how long to wait for the other ranks.
    """

    def __init__(self, pipes: Sequence[Sequence[int]], timeout: timedelta) -> None:
        self.timeout = timeout
        self._pipes = [list(row) for row in pipes]
        self._ranks = sorted(rank for row in pipes for rank in row)
        self.group = make_group(self._ranks, timeout, "gloo")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise an error on every rank after a block that raises an error on any rank: see `settle`."""
        error = None
        try:
            yield
        except Exception as failure:  # a stage's code may raise any error
            error = failure
        self.settle(error)

    def gather(self, value: T) -> dict[int, T]:
        """Return the values of all ranks by global rank."""
        values: list[Any] = [None] * len(self._ranks)
        with naming(_ASKED):
            dist.all_gather_object(values, value, group=self.group)
        return dict(zip(self._ranks, values, strict=True))

    def settle(self, error: Exception | None, samples: int = 0) -> None:
        """Wait for all ranks, and raise an error on each of them if any rank has one.

        Args:
            error: the error of this rank, if it has one.
            samples: the samples of this rank's mini-batch.

        Raises:
            Exception: this rank's error.
            MucudnnError: another rank's error, of the same class if that is one of mucudnn's.
            UsageError: the ranks of a pipeline have mini-batches with different numbers of samples.
        """
        own = _describe(error)
        answers = self.gather((own, samples))
        failures = {rank: failure for rank, (failure, _) in answers.items() if failure is not None}
        texts = [f"rank {rank} failed: {failure[1]}" for rank, failure in failures.items() if failure != own]
        if error is not None:
            for text in texts:
                error.add_note(text)
            raise error
        if failures:
            raise next(iter(failures.values()))[0]("; ".join(texts))
        for row in self._pipes:
            counts = [answers[rank][1] for rank in row]
            if min(counts) != max(counts):
                raise UsageError(
                    f"the ranks {row} of a pipeline have mini-batches of {min(counts)} to {max(counts)} "
                    "samples: give all of them the same mini-batch"
                )


def _describe(error: Exception | None) -> tuple[type[MucudnnError], str] | None:
    """Return the class and the text of the error that other ranks raise for an error on this rank."""
    if error is None:
        return None
    notes = getattr(error, "__notes__", [])
    if isinstance(error, MucudnnError):
        return type(error), ", ".join((str(error), *notes))
    return MucudnnError, ", ".join((f"{type(error).__name__}: {error}", *notes))

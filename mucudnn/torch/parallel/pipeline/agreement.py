"""The agreement of all ranks: whether a step can begin, and whether any rank failed.

A rank that fails in the middle of a step sends placeholders until the step ends, when all ranks raise an
error.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from mucudnn.errors import MucudnnError
from mucudnn.torch.parallel.ranks import naming

T = TypeVar("T")


@dataclass(frozen=True)
class Agreement:
    """The connection of a rank to all other ranks.

    Attributes:
        group: the process group of these ranks, on gloo, so that no device waits for its messages; None for
            the whole world, or for a process alone.
    """

    group: dist.ProcessGroup | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise an error on every rank after a block that raises an error on any rank: see `gather`."""
        error = None
        try:
            yield
        except Exception as failure:  # a stage's code may raise any error
            error = failure
        self.gather(None, error)

    def gather(self, value: T, error: Exception | None = None) -> dict[int, T]:
        """Return the values of all ranks by global rank, or raise an error on each if any rank has one.

        Args:
            value: the value of this rank.
            error: the error of this rank, if it has one.

        Raises:
            Exception: this rank's error.
            MucudnnError: another rank's error, of the same class if that is one of mucudnn's.
        """
        own = _describe(error)
        ranks, answers = [0], [(value, own)]
        if dist.is_initialized():
            ranks = dist.get_process_group_ranks(self.group)
            answers *= len(ranks)
            with naming("this rank waited for all ranks of the pipeline"):
                dist.all_gather_object(answers, (value, own), group=self.group)
        failures = {rank: failure for rank, (_, failure) in zip(ranks, answers, strict=True) if failure}
        texts = [f"rank {rank} failed: {failure[1]}" for rank, failure in failures.items() if failure != own]
        if error is not None:
            for text in texts:
                error.add_note(text)
            raise error
        if failures:
            raise next(iter(failures.values()))[0]("; ".join(texts))
        return {rank: answer for rank, (answer, _) in zip(ranks, answers, strict=True)}


def _describe(error: Exception | None) -> tuple[type[MucudnnError], str] | None:
    """Return the class and the text of the error that other ranks raise for an error on this rank."""
    if error is None:
        return None
    is_ours = isinstance(error, MucudnnError)
    text = str(error) if is_ours else f"{type(error).__name__}: {error}"
    kind: Any = type(error) if is_ours else MucudnnError
    return kind, ", ".join((text, *getattr(error, "__notes__", [])))

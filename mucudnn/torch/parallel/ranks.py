"""Process groups, and the error that a rank raises if another rank has ended."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from mucudnn.errors import MucudnnError


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Raise a MucudnnError that names what failed if torch.distributed raises an error."""
    try:
        yield
    except MucudnnError:
        raise
    except RuntimeError as error:
        raise MucudnnError(f"{what} without success: another rank has failed or stopped ({error})") from error


def make_group(ranks: Sequence[int], timeout: timedelta, backend: str | None = None) -> dist.ProcessGroup:
    """Return a new process group, which every process of the world must make. Raises MucudnnError."""
    with naming(f"this rank made a process group of the ranks {list(ranks)}"):
        return dist.new_group(list(ranks), timeout=timeout, backend=backend)

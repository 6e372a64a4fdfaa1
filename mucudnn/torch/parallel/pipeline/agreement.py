"""The agreement of all ranks: whether a step can begin, how messages look, and whether any rank failed.

Messages between stages have no headers, because the host would have to wait for a header before it could post
the receive. A receiver knows a message's layout from the step before. If any rank expects a change, all ranks
run the step with headers. A rank that fails in the middle of a step sends placeholders until the step ends,
when all ranks raise an error.

Each step asks all ranks twice: as it begins, and before gradients are summed. The answers travel over gloo,
so that no device waits for them, and the first answer arrives while the first stage computes.
"""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from mucudnn.errors import MucudnnError, UsageError
from mucudnn.torch.parallel.pipeline.shapes import Layout
from mucudnn.torch.parallel.ranks import make_group, naming

T = TypeVar("T")
_Pending: TypeAlias = tuple[Tensor, dist.Work]
_KNOWN, _UNKNOWN, _REFUSED = range(3)  # a rank's answer, as a step begins, about the layouts of its outputs
_MOST = (1 << 63) - 1
_ASKED = "this rank asked all ranks of the pipeline"


class Agreement:
    """The layouts on which a rank agreed with its neighbours, and its connection to all other ranks.

    Every process must construct it, because that makes a process group.

    Args:
        pipes: the global ranks of each pipeline.
        timeout: how long to wait for the other ranks.

    Attributes:
        sent: the layouts of the outputs of this rank's stages, {(stage, replica, samples): layout}, because
            the last micro-batches of a mini-batch may have fewer samples.
        received: the layouts of the inputs of this rank's stages, likewise.
        timeout: how long to wait for the other ranks.
    """

    def __init__(self, pipes: Sequence[Sequence[int]], timeout: timedelta) -> None:
        self.sent: dict[tuple[int, int, int], Layout] = {}
        self.received: dict[tuple[int, int, int], Layout] = {}
        self.timeout = timeout
        self._pipes = [list(row) for row in pipes]
        self._ranks = sorted(rank for row in pipes for rank in row)
        self._group = make_group(self._ranks, timeout, "gloo")
        self._state: object = None
        self._always_unknown = False
        self._begun: _Pending | None = None
        self._has_headers = True
        self._leaving: list[_Pending] = []

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise an error on every rank after a block that raises an error on any rank: see `end`."""
        error = None
        try:
            yield
        except Exception as failure:  # a stage's code may raise any error
            error = failure
        self._raise_together(error)

    def gather(self, value: T) -> dict[int, T]:
        """Return the values of all ranks by global rank."""
        values: list[Any] = [None] * len(self._ranks)
        with naming(_ASKED):
            dist.all_gather_object(values, value, group=self._group)
        return dict(zip(self._ranks, values, strict=True))

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Tell all ranks if a block raises an error, so that they do not begin the step either."""
        try:
            yield
        except Exception as error:  # the caller may pass anything
            _wait(self._ask(_REFUSED))
            self._fail(error)

    def begin(self, state: object, samples: int) -> None:
        """Begin a step.

        Args:
            samples: the samples of this rank's mini-batch.
            state: everything known to this rank that decides the layouts of its outputs. All ranks send
                headers in this step if the state differs from the state of this rank's last step.
        """
        is_known = state == self._state and not self._always_unknown
        self._state = state
        self._begun = self._ask(_KNOWN if is_known else _UNKNOWN, samples)

    def has_headers(self) -> bool:
        """Return whether the messages of this step have headers.

        Raises:
            MucudnnError: a rank refused.
            UsageError: the ranks of a pipeline have mini-batches with different numbers of samples.
        """
        if self._begun is not None:
            begun, self._begun = self._begun, None
            answer = _wait(begun)
            if answer == _REFUSED:
                self._fail(None)
            figures = begun[0].tolist()
            for row, most, negative in zip(self._pipes, figures[1::2], figures[2::2], strict=True):
                if most != -negative:  # on every rank alike
                    self._state = None
                    raise UsageError(
                        f"the ranks {row} of a pipeline have mini-batches of {-negative} to {most} samples: "
                        "give all of them the same mini-batch"
                    )
            self._has_headers = answer == _UNKNOWN
            if self._has_headers:
                self.sent.clear()
                self.received.clear()
        return self._has_headers

    def send_header(self, layout: Layout, receiver: int) -> None:
        """Start to send a message's layout to a global rank."""
        text = torch.frombuffer(bytearray(pickle.dumps(layout)), dtype=torch.uint8)
        for part in (torch.tensor([len(text)]), text):
            self._leaving.append((part, dist.isend(part, receiver, self._group)))

    def receive_header(self, sender: int) -> Layout:
        """Wait for the layout of the next message from a global rank, and return it."""
        length = torch.empty(1, dtype=torch.int64)
        dist.recv(length, sender, self._group)
        text = torch.empty(int(length), dtype=torch.uint8)
        dist.recv(text, sender, self._group)
        layout = pickle.loads(text.numpy().tobytes())
        assert isinstance(layout, Layout)
        return layout

    def learn(self, place: tuple[int, int, int], layout: Layout) -> None:
        """Remember the layout of outputs that this rank described in a header: see `sent`."""
        if self.sent.setdefault(place, layout) != layout:
            self.expect_changes()

    def expect_changes(self) -> None:
        """Let all further steps have headers, because outputs of this rank change for unknown reasons."""
        self._always_unknown = True

    def end(self, error: Exception | None) -> None:
        """End a step on every rank.

        Raises:
            Exception: this rank's error.
            MucudnnError: another rank's error, of the same class if that is one of mucudnn's.
        """
        self.has_headers()  # a rank without messages has not read the answer yet
        with naming(_ASKED):
            for _, work in self._leaving:
                work.wait()
        self._leaving.clear()
        if _wait(self._ask(int(error is not None))):
            self._fail(error)

    def _fail(self, error: Exception | None) -> None:
        self._state = None
        self._raise_together(error)

    def _ask(self, answer: int, samples: int = 0) -> _Pending:
        """Ask for the greatest answer, and in each pipeline for the most and the negative fewest samples."""
        own = dist.get_rank()
        figures = [sign * samples if own in row else -_MOST for row in self._pipes for sign in (1, -1)]
        greatest = torch.tensor([answer, *figures])
        with naming(_ASKED):
            work = dist.all_reduce(greatest, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return greatest, work

    def _raise_together(self, error: Exception | None) -> None:
        """Raise an error if any rank failed: this rank's own, or an error that describes the others'."""
        own = _describe(error)
        failures = {rank: failure for rank, failure in self.gather(own).items() if failure is not None}
        if error is None and not failures:
            return
        texts = [f"rank {rank} failed: {failure[1]}" for rank, failure in failures.items() if failure != own]
        if error is not None:
            for text in texts:
                error.add_note(text)
            raise error
        kind, _ = next(iter(failures.values()))
        raise kind("; ".join(texts))


def _wait(answer: _Pending) -> int:
    """Return the greatest of all ranks' answers."""
    greatest, work = answer
    with naming(_ASKED):
        work.wait()
    return int(greatest[0])


def _describe(error: Exception | None) -> tuple[type[MucudnnError], str] | None:
    """Return the class and the text of the error that other ranks raise for an error on this rank."""
    if error is None:
        return None
    notes = getattr(error, "__notes__", [])
    if isinstance(error, MucudnnError):
        return type(error), ", ".join((str(error), *notes))
    return MucudnnError, ", ".join((f"{type(error).__name__}: {error}", *notes))

"""The calls that a program has made, so that only calls that come again are measured.

To measure a call takes as long as several calls, which a program whose every step has another size would
never earn back. Such a program runs PyTorch's own convolutions.
"""

import os
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from mucudnn import settings
from mucudnn.arrays.recent import Recent
from mucudnn.measuring.budget import Budget, PacedBudget

_MOST_CALLS, _MOST_LAYERS = 8192, 1024  # an entry takes about 200 bytes
_MOST_NEEDED = 32  # calls after which any shape is measured


@dataclass
class Layer:
    """The number of a layer's shapes, and of those that the cache did not know."""

    shapes: int = 0
    unknown: int = 0


class Sightings:
    """The number of times that each layer of a program has had each call, for the most recent calls.

    A layer is a module or a weight. Identical layers are counted apart, because all of them have the same
    call in a single step.
    """

    def __init__(self, budget: Budget | None = None) -> None:
        self._budget = budget  # None for that of the process
        self._pace = PacedBudget()  # if there is no other one
        self.deciding_s = 0.0  # the seconds that decisions took, measurements included
        self.undecided = 0  # the calls that came before their decision
        self._counts: Recent[tuple[Hashable, int], int] = Recent(_MOST_CALLS)
        self._layers: Recent[Hashable, Layer] = Recent(_MOST_LAYERS)
        self._most_shapes = 0  # the largest number of shapes that a layer has had

    def earns_measuring(self, key: Hashable, layer: Hashable) -> bool:
        """Count a call of a layer. Return whether the layer has had it often enough to measure it.

        A shape must have come once for each shape of the layer with the most shapes, before it is measured
        when it comes again. The last layers of a network meet the same few sizes even if each step's input
        has a new size, and a layer that runs twice in a step meets even a new size again.
        """
        try:
            call = layer, hash(key)
        except TypeError:  # a size that cannot be hashed
            return True
        count = self._counts[call] or 0
        self._counts[call] = count + 1
        if not count:
            seen = self.seen(layer)
            seen.shapes += 1
            self._most_shapes = max(self._most_shapes, seen.shapes)
        return count >= min(self._most_shapes, _MOST_NEEDED)

    def seen(self, layer: Hashable) -> Layer:
        """Return what is known about a layer, which the caller may change."""
        self._layers[layer] = seen = self._layers[layer] or Layer()
        return seen

    def note_call(self) -> None:
        """Note an undecided call: the program's work since the latest one earns time for decisions."""
        self.undecided += 1
        self._pace.note_call()

    @property
    def must_wait(self) -> bool:
        """True if decisions have taken so much of the program's time that the next ones have to wait."""
        return self._is_paced and self._pace.is_spent

    @property
    def _is_paced(self) -> bool:
        return self._budget is None and not os.environ.get(settings.BUDGET.variable)

    @contextmanager
    def deciding(self, *, is_paced: bool = False) -> Iterator[None]:
        """Add the time of the block to that of the decisions, and let the program's budget apply to it.

        If nobody named a budget and the decisions of a program `is_paced`, they wait for its own work.
        """
        start = time.perf_counter()
        budget = self._pace if is_paced and self._is_paced else self._budget
        try:
            with nullcontext() if budget is None else budget.applied():
                yield
        finally:
            self.deciding_s += time.perf_counter() - start


of_functions = Sightings()  # the calls of functions; each converted model has its own

"""The rescue of a convolution that finds no memory for its workspace: it runs in smaller slices."""

import logging
from collections.abc import Callable, Iterator, Sequence

from mucudnn._native import Division, Engine, EngineError, refusal_of_slices
from mucudnn.errors import NothingFitsError, raised_here
from mucudnn.measuring.candidates import runnable
from mucudnn.problems.kernels import Kernel
from mucudnn.sizes import format_size

Slices = Sequence[tuple[int, str]]
_logger = logging.getLogger("mucudnn")


class Rescue:
    """Divisions of a kernel with less workspace than the chosen one.

    Once a call has needed a smaller division, later calls begin with it: they would run out of memory too.
    """

    def __init__(self, engine: Engine, kernel: Kernel, slices: Slices, workspace: int) -> None:
        self._engine, self._kernel, self._slices, self._workspace = engine, kernel, slices, workspace
        self._smallest: Division | None = None

    def run(self, division: Division, attempt: Callable[[Division], None]) -> None:
        """Run `attempt` on the division, then on smaller ones until there is memory for the workspace.

        Warn once. Raises NothingFitsError if no workspace finds memory, and all that `attempt` raises.
        """
        first = self._smallest or division
        try:
            return attempt(first)
        except NothingFitsError as error:
            for smaller in self._smaller(first.workspace):
                try:
                    attempt(smaller)
                except NothingFitsError:
                    continue
                if self._smallest is None:
                    _logger.warning(
                        "%s of %s: there was no memory for %s of workspace. Now it runs in smaller slices, "
                        "with %s",
                        self._kernel.pass_,
                        self._kernel.problem,
                        *map(format_size, (self._workspace, smaller.workspace)),
                    )
                self._smallest = smaller
                return None
            raise error

    def _smaller(self, workspace: int) -> Iterator[Division]:
        """Yield divisions into ever smaller slices, each with less workspace, down to single samples."""
        algorithms = [self._slices]
        size = max(size for size, _ in self._slices)
        while size > 1:
            size = (size + 1) // 2
            pieces = [
                (min(size, whole - begin), algorithm)
                for whole, algorithm in self._slices
                for begin in range(0, whole, size)
            ]
            algorithms.append(pieces)
        if candidates := runnable(self._engine.enumerate(self._kernel.at(1))):
            least = min(candidates, key=lambda candidate: candidate.workspace)
            algorithms.append([(1, least.algorithm)] * self._kernel.mini_batch)
        for slices in algorithms:
            if refusal_of_slices(self._kernel, len(slices)):
                continue
            try:
                division = self._engine.prepare(self._kernel, slices)
            except raised_here(EngineError, ValueError):  # the algorithm cannot run slices of this size
                continue
            if division.workspace < workspace:
                workspace = division.workspace
                yield division

"""HiGHS, the solver of all integer linear programs, as PuLP runs it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from .forks import no_fork

if TYPE_CHECKING:
    import pulp


def make_solver(nodes: int | None = None, **options: Any) -> pulp.HiGHS:
    """Return a silent solver on one thread, so that equal inputs get equal answers.

    Args:
        nodes: the most nodes of its search tree that HiGHS visits, a limit that does not depend on the
            machine's speed. PuLP cannot read the status after HiGHS's own option for this.
        options: HiGHS's own options.
    """
    return _load()(nodes, options)


@cache
def _load() -> Callable[[int | None, dict[str, Any]], pulp.HiGHS]:
    with no_fork:  # imported late, because both load slowly and few callers need them
        import highspy
        import pulp

    class Silent(highspy.Highs):
        """HiGHS without output."""

        def enableCallbacks(self) -> None:  # noqa: N802
            """Switch the output off before `Highs.__init__` enables callbacks, which prints."""
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]  # highspy has few types

    class Solver(pulp.HiGHS):  # type: ignore[misc]  # PuLP has no types
        """PuLP's interface to `Silent`."""

        def __init__(self, nodes: int | None, options: dict[str, Any]) -> None:
            super().__init__(msg=False)
            self._nodes, self._options = nodes, {"threads": 1, **options}

        def createAndConfigureSolver(self, problem: pulp.LpProblem) -> None:  # noqa: N802
            """Give the problem its solver."""
            problem.solverModel = Silent()  # type: ignore[no-untyped-call]
            for name, value in self._options.items():
                problem.solverModel.setOptionValue(name, value)
            if self._nodes is not None:
                problem.solverModel.setCallback(self._stop, None)
                problem.solverModel.startCallback(highspy.cb.HighsCallbackType.kCallbackMipInterrupt)

        def _stop(self, kind: Any, message: str, progress: Any, answer: Any, data: Any) -> None:
            answer.user_interrupt = progress.mip_node_count >= self._nodes

    return Solver

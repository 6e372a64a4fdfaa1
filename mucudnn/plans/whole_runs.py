"""Whole runs, which choose among the divisions of a kernel with the best predictions.

The sum of the micro-batches' times predicts a division's time but can be wrong, so the division with the best
prediction is run whole, interleaved with the best undivided algorithm. If both take longer than the
prediction of another division, that division is run whole too. The fastest run decides. Under a total, the
best undivided algorithm may use more workspace than the division was granted. Then the fallback, which does
not, is run whole as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import TypeAlias

from mucudnn.costs.records import Comparison, Machine
from mucudnn.costs.table import CostTable
from mucudnn.forks import no_fork
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.source import runs_stock
from mucudnn.plans.decide import LEAST_SPEEDUP, Decision, Limits, fastest_configuration
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.solver import Configuration

MOST_ALTERNATIVES = 2
GAIN = 0.95  # an alternative is run whole if it is predicted to take at most this part of the least time
_Runs: TypeAlias = tuple[Kernel, Configuration | None, Configuration]  # undivided and divided


@dataclass(frozen=True)
class WholeRuns:
    """The whole runs for decisions that were made from `costs`, kept in the bench's cache.

    The cache does not keep the `disturbed` comparisons, in whose runs other programs took the processors.
    """

    bench: Bench
    costs: CostTable
    policy: str
    limits: Limits
    disturbed: dict[_Runs, Comparison] = field(default_factory=dict)

    def name_claim(self, decision: Decision) -> str:
        """Return the name by which a process claims the runs of a decision."""
        kernel, undivided = decision.kernel, decision.undivided or ""
        machine = self.bench.machine.identity
        return f"compare {machine} {kernel.problem} {kernel.pass_} {undivided}, {decision.divided}"

    def look_up(self, decision: Decision) -> Decision:
        """Return the decision for the configuration that was fastest when run whole, with its comparison.

        The fallback stays unless a division saves 3 %, and if other programs disturbed the comparison.
        The comparison is None if nothing was run whole. The shares are looked up as well.
        """
        decision = replace(decision, shares=tuple(map(self.look_up, decision.shares)))
        known, missing = self._find(decision)
        undivided, fallback = decision.undivided, decision.fallback
        if missing is not None and missing in (decision.divided, fallback):
            busy = self.disturbed.get((decision.kernel, undivided, missing))
            predicted = replace(decision, comparison=busy, is_busy=busy is not None)
            if busy is None or fallback is None or fallback == decision.divided:
                return predicted
            ran = _without_division(busy) if fallback == undivided else None
            return replace(predicted, divided=fallback, comparison=ran, outrun=predicted)

        def cost(configuration: Configuration) -> float:
            # Relative to the undivided run beside it, in case the machine's speed changes between two runs.
            relative = known[configuration].divided_ms / (known[configuration].undivided_ms or 1)
            return relative if configuration == fallback else LEAST_SPEEDUP * relative

        best = min(known, key=cost)
        ran = known[best]
        if undivided is not None and undivided == fallback and cost(best) > 1:
            best, ran = undivided, _without_division(ran)
        predicted = replace(decision, comparison=known[decision.divided])
        if best == decision.divided:
            return predicted
        return replace(decision, divided=best, comparison=ran, outrun=predicted)

    def is_missing(self, decision: Decision) -> bool:
        """Return whether some division has to be run."""
        return self._find(decision)[1] is not None

    def run_missing(self, decision: Decision) -> None:
        """Run the divisions whole that another process has not run in the meantime."""
        with no_fork:
            from mucudnn.measuring.compare import compare  # it imports numpy

        while (divided := self._find(decision)[1]) is not None:
            compared, is_busy = compare(self.bench, decision.kernel, decision.undivided, divided)
            if is_busy:
                self.disturbed[decision.kernel, decision.undivided, divided] = compared
                return
            machine = self._machine_of(decision.undivided, divided)
            self.bench.cache.add_comparison(machine, decision.kernel, decision.undivided, divided, compared)

    def _find(self, decision: Decision) -> tuple[dict[Configuration, Comparison], Configuration | None]:
        """Return the known comparisons, and the division that has to be run next, if any."""
        known: dict[Configuration, Comparison] = {}
        most_ms = inf  # a division with a longer prediction is not worth a run
        for divided in self._candidates(decision):
            if divided.time_ms > most_ms and divided != decision.fallback:
                break
            machine = self._machine_of(decision.undivided, divided)
            compared = self.bench.cache.comparison(machine, decision.kernel, decision.undivided, divided)
            if compared is None:
                return known, divided
            known[divided] = compared
            most_ms = min(most_ms, GAIN * compared.divided_ms, GAIN * (compared.undivided_ms or inf))
        return known, None

    def _candidates(self, decision: Decision) -> Iterator[Configuration]:
        """Yield the chosen division, the fallback if it is not compared with it, and then alternatives.

        An alternative has none of the micro-configurations of those before it.
        """
        yield decision.divided
        if decision.fallback not in (None, decision.undivided, decision.divided):
            yield decision.fallback
        kernel, last = decision.kernel, decision.divided
        rows = self.costs.at_sizes(kernel, usable_sizes(self.policy, kernel))
        limit = self.limits.granted(decision.divided)
        for _ in range(MOST_ALTERNATIVES):
            used = set(last.slices)
            rows = [row for row in rows if (row.micro_batch, row.algorithm) not in used]
            alternative = fastest_configuration(rows, kernel, limit)
            if alternative is None:
                return
            if alternative.is_divided:
                yield alternative
            last = alternative

    def _machine_of(self, undivided: Configuration | None, divided: Configuration) -> Machine:
        """Return the machine of a comparison, which is the source's if a configuration has STOCK."""
        source = self.bench.source
        if source is not None and (runs_stock(undivided) or runs_stock(divided)):
            return source.machine
        return self.bench.machine


def stay_undivided(decision: Decision) -> Decision:
    """Return the decision for the undivided algorithm, if there is one."""
    undivided, ran = decision.undivided, decision.comparison
    if undivided is None or undivided == decision.divided:
        return decision
    ran = ran and _without_division(ran)
    return replace(decision, divided=undivided, fallback=undivided, comparison=ran, outrun=decision)


def _without_division(compared: Comparison) -> Comparison:
    """Return the comparison of the undivided configuration with itself."""
    assert compared.undivided_ms is not None
    assert compared.undivided_spread_ms is not None
    return replace(
        compared,
        divided_ms=compared.undivided_ms,
        divided_spread_ms=compared.undivided_spread_ms,
    )

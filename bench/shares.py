"""Division of a total with identical kernels together, against the same with identical kernels apart."""

from __future__ import annotations

from bench.record import Record
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import Bench
from mucudnn.plans.decide import Limits, decide, sum_times
from mucudnn.plans.optimizer import benchmark
from mucudnn.problems.kernels import PASSES, Flags, read_kernels
from mucudnn.sizes import format_size

MIB = 2**20
BATCH = 16
POLICY = "power_of_two"
TOTALS = (8 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)


def run(bench: Bench) -> list[Record]:
    """Measure ResNet-50 in three passes, and return the figures of `compare`."""
    kernels = read_kernels("resnet50", Flags(batch=BATCH), PASSES)
    benchmark(bench, kernels, POLICY, comparing=False)
    return compare(bench.costs(kernels))


def compare(costs: CostTable) -> list[Record]:
    """Return the time of one configuration for all identical kernels over that of shares, for each total.

    The times are predicted from the measurements, not run.
    """
    records = []
    for total in TOTALS:
        decisions = decide(costs, POLICY, Limits(total=total, exact=True))
        together, apart = sum_times(decisions), sum_times(one for d in decisions for one in d.apart)
        details = {
            "together_ms": together,
            "apart_ms": apart,
            "kernels": len(decisions),
            "occurrences": sum(decision.kernel.count for decision in decisions),
        }
        records.append(
            Record(
                "shares", format_size(total), "time together over apart", together / apart, "ratio", details
            )
        )
    return records

"""Kernels for the tests of `optimize`, and a call of it on an engine whose times are formulas."""

from pathlib import Path
from typing import Any, cast

from fake_engine import FAST_AND_HUNGRY, FakeEngine

from mucudnn._native import Engine, parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import optimize
from mucudnn.plans.result import Result
from mucudnn.problems.kernels import Kernel

MiB = 2**20
LIMIT = Limits(workspace=2 * MiB)
KERNELS = [
    Kernel(parse_descriptor("mb8_ic4ih5_oc4_kh3")[0], "forward", "first"),
    Kernel(parse_descriptor("mb8_ic4ih6_oc4_kh3")[0], "backward_filter", "second", 3),
]
HUNGRY = {"HUNGRY": FAST_AND_HUNGRY}


def run(path: Path, engine: FakeEngine, listener: Listener | None = None, **options: Any) -> Result:
    """Optimize KERNELS within LIMIT, unless the options replace these."""
    with Cache.open(path) as cache:
        return optimize(
            Bench(cast(Engine, engine), cache, listener or Listener(), options.pop("runner", Exhaustive())),
            options.pop("kernels", KERNELS),
            options.pop("policy", "power_of_two"),
            options.pop("limits", LIMIT),
            **options,
        )

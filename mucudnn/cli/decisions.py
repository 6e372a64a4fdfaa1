"""The decisions of `mucudnn optimize` and `mucudnn report`, from their flags."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeAlias

from mucudnn.cli import options
from mucudnn.cli.terminal import Terminal, opened_cache
from mucudnn.costs.cache import Cache
from mucudnn.costs.table import CostTable
from mucudnn.errors import UsageError
from mucudnn.forks import no_fork
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.runners import Runner
from mucudnn.plans.optimizer import optimize, replay
from mucudnn.plans.result import Result
from mucudnn.problems.kernels import Kernel

FindCosts: TypeAlias = Callable[[], CostTable]


@contextmanager
def decided(arguments: argparse.Namespace, runner: Runner) -> Iterator[tuple[Result, FindCosts]]:
    """Decide as the flags say, from recorded or new measurements, or without any by a model.

    Yield also a function that returns the costs of the kernels. The cache, which it reads, stays open.
    """
    kernels, policy = options.kernels_of(arguments), options.policy_of(arguments)
    limits, terminal, promise = options.limits_of(arguments), Terminal(), options.promise_in(arguments)
    if arguments.replay:
        if not promise.is_timed:
            raise UsageError(f"--replay decides by recorded times, which '{promise}' excludes: leave it out")
        with Cache.read_only(arguments.replay) as cache:
            result = replay(cache, kernels, policy, limits, terminal, threads=arguments.threads)
            yield result, partial(CostTable.read, cache, result.machine, kernels)
        return
    options.obey_remeasure(arguments)
    engine = open_engine(*options.engine_options(arguments))
    with opened_cache(terminal, needed=False) as cache, options.budget_of(arguments).applied():
        bench = Bench(engine, cache, terminal, runner)
        result = optimize(bench, kernels, policy, limits, run=not arguments.no_run, promise=promise)
        if promise.is_timed:
            yield result, partial(CostTable.read, cache, result.machine, kernels)
        else:
            yield result, partial(_find_modelled, bench, kernels, policy)


def _find_modelled(bench: Bench, kernels: Sequence[Kernel], policy: str) -> CostTable:
    with no_fork:
        from mucudnn.measuring.modelled_costs import modelled_table  # recorded decisions need no model

    return modelled_table(bench, kernels, policy)

"""The decisions of `mucudnn optimize` and `mucudnn report`, from their flags."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from mucudnn.cli import options
from mucudnn.cli.terminal import Terminal, opened_cache
from mucudnn.costs.cache import Cache
from mucudnn.errors import UsageError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.runners import Runner
from mucudnn.plans.optimizer import optimize, replay
from mucudnn.plans.result import Result


@contextmanager
def decided(arguments: argparse.Namespace, runner: Runner) -> Iterator[tuple[Result, Cache]]:
    """Decide as the flags say, from recorded or new measurements, and keep the cache open meanwhile."""
    kernels, policy = options.kernels_of(arguments), options.policy_of(arguments)
    limits, terminal, promise = options.limits_of(arguments), Terminal(), options.promise_in(arguments)
    if arguments.replay:
        if not promise.is_timed:
            raise UsageError(f"--replay decides by recorded times, which '{promise}' excludes: leave it out")
        with Cache.recorded(arguments.replay) as cache:
            yield replay(cache, kernels, policy, limits, terminal, threads=arguments.threads), cache
        return
    options.obey_remeasure(arguments)
    engine = open_engine(*options.engine_options(arguments))
    with opened_cache(terminal, needed=False) as cache, options.budget_of(arguments).applied():
        bench = Bench(engine, cache, terminal, runner)
        yield optimize(bench, kernels, policy, limits, run=not arguments.no_run, promise=promise), cache

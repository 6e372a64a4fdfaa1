"""`mucudnn benchmark`: measure the kernels of a network into the cache, and decide nothing."""

import argparse
import shlex

from mucudnn.cli import options
from mucudnn.cli.terminal import Terminal, opened_cache, show, table
from mucudnn.engines import open_engine
from mucudnn.measure import machine_of
from mucudnn.optimizer import benchmark
from mucudnn.policies import micro_batch_sizes
from mucudnn.records import SUCCESS
from mucudnn.sizes import format_size
from mucudnn.text import short_names

HELP = "measure algorithms at micro-batch sizes into the cache"
DESCRIPTION = "Measures what the cache lacks, and decides nothing."


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_kernel_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure, and show all that the cache now has of these kernels."""
    kernels, policy = options.kernels_of(arguments), options.policy_of(arguments)
    engine = open_engine(*options.engine_options(arguments))
    terminal, machine = Terminal(), machine_of(engine)
    rows = table()
    rows.add_column("kernel", overflow="fold")
    rows.add_column("micro-batch", justify="right")
    rows.add_column("algorithm")
    rows.add_column("ms", justify="right")
    rows.add_column("± ms", justify="right")
    rows.add_column("workspace", justify="right")
    with opened_cache(terminal, needed=True) as cache:
        new = benchmark(engine, cache, kernels, policy, terminal, comparing=False)
        for name, kernel in zip(short_names([k.label for k in kernels]), kernels, strict=True):
            sizes = micro_batch_sizes(policy, kernel.problem.mini_batch)
            label = f"{name} {kernel.pass_}"
            for row in cache.measurements(machine, kernel.problem, kernel.pass_):
                if row.micro_batch not in sizes or row.status != SUCCESS:
                    continue
                cells = (f"{value:.3f}" for value in (row.median_ms or 0.0, (row.spread_ms or 0.0) / 2))
                rows.add_row(label, str(row.micro_batch), row.algorithm, *cells, format_size(row.workspace))
                label = ""
            rows.add_section()
    words = ["mucudnn", "optimize", arguments.network, *options.kernel_flags(arguments)]
    show(
        rows,
        "",
        f"{new} new measurement{'s' * (new != 1)} on {machine}, kept in {cache.path}",
        f"Next: {shlex.join(words)}",
    )

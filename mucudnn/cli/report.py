"""`mucudnn report`: write a page that shows the decisions for a network and the gain of more memory."""

import argparse
from datetime import date
from pathlib import Path

from mucudnn.cli import options, outputs
from mucudnn.cli.terminal import Terminal, opened_cache, show
from mucudnn.costs.cache import Cache
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.engines import open_engine
from mucudnn.output.files import write_lines
from mucudnn.plans.optimizer import optimize, replay
from mucudnn.plans.parts.channels import add_groups
from mucudnn.plans.parts.recorded_groups import predict_groups
from mucudnn.plans.result import Result
from mucudnn.report import check_installed
from mucudnn.report.gather import Report, gather

HELP = "write a page with plots of the decisions"
DESCRIPTION = (
    "Makes the measurements that the cache lacks, decides, and writes one HTML page that needs no other "
    "file. It shows time against workspace of each kernel and of the whole network, the gain of more memory, "
    "and the chosen divisions."
)
EXAMPLES = (
    "mucudnn report alexnet --workspace 64MiB --output alexnet.html",
    "mucudnn report resnet50 --passes all --replay cache.sqlite",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_kernel_options(parser)
    options.add_decision_options(parser)
    parser.add_argument(
        "--output", type=options.checked(options.output), metavar="HTML", default="report.html",
        help="the page (default: report.html)",
    )  # fmt: skip
    parser.add_argument(
        "--plots", type=options.checked(options.path), metavar="DIR", help="write each plot to a file, too"
    )
    parser.add_argument(
        "--format", choices=("svg", "png"), default="svg", help="format of the plots' files (default: svg)"
    )
    outputs.add_force(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure, decide, and write the page and the plots."""
    check_installed()
    outputs.check(Path(arguments.output), outputs.PAGE, force=arguments.force)
    kernels, policy = options.kernels_of(arguments), options.policy_of(arguments)
    limits = options.limits_of(arguments)
    if arguments.replay:
        with Cache.recorded(arguments.replay) as cache:
            result = replay(cache, kernels, policy, limits, Terminal(), threads=arguments.threads)
            report = _gather(arguments.network, predict_groups(cache, result), cache)
    else:
        engine, terminal = open_engine(*options.engine_options(arguments)), Terminal()
        with opened_cache(terminal, needed=False) as cache:
            bench = Bench(engine, cache, terminal)
            result = optimize(bench, kernels, policy, limits, run=not arguments.no_run)
            result = add_groups(bench, result, run=not arguments.no_run)
            report = _gather(arguments.network, result, cache)
    _write_page(report, arguments.output)
    lines = [*report.advice, ""]
    if arguments.plots:
        lines.append(_write_plots(report, arguments.plots, arguments.format))
    show(*lines, f"Next: open {arguments.output} in a browser")


def _gather(network: str, result: Result, cache: Cache) -> Report:
    kernels = [decision.kernel for decision in result.decisions]
    return gather(network, result, CostTable.read(cache, result.machine, kernels))


def _write_page(report: Report, path: Path) -> None:
    from mucudnn.report.page import render

    write_lines(path, [render(report, date.today())], "the page")


def _write_plots(report: Report, folder: Path, suffix: str) -> str:
    from mucudnn.report.files import write_plots

    return f"{write_plots(report, folder, suffix)} plots are in {folder}"

"""`mucudnn report`: write a page that shows the decisions for a network and the gain from more memory."""

import argparse
from datetime import date
from pathlib import Path

from mucudnn.cli import options, outputs
from mucudnn.cli.decisions import decided
from mucudnn.cli.terminal import show
from mucudnn.measuring.runners import Exhaustive
from mucudnn.output.files import write_lines
from mucudnn.report import check_installed
from mucudnn.report.gather import gather

HELP = "write a page with plots of the decisions"
DESCRIPTION = (
    "Makes the measurements that the cache lacks, decides, and writes one HTML page that needs no other "
    "file. It shows time against workspace for each kernel and the whole network, the gain from more memory, "
    "and the chosen divisions."
)
EXAMPLES = (
    "mucudnn report alexnet --workspace 64MiB --output alexnet.html",
    "mucudnn report resnet50 --passes all --replay cache.sqlite",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_kernel_options(parser)
    options.add_batch_invariant(parser)
    options.add_choice(parser)
    options.add_decision_options(parser)
    outputs.add_output(parser, "HTML", "the page (default: report.html)", default="report.html")
    parser.add_argument(
        "--plots",
        type=options.checked(options.parse_path),
        metavar="DIR",
        help="write each plot to a file, too",
    )
    parser.add_argument(
        "--format", choices=("svg", "png"), default="svg", help="format of the plots' files (default: svg)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Measure, decide, and write the page and the plots."""
    check_installed()
    from mucudnn.report.page import render
    from mucudnn.report.plots import write_plots

    outputs.check(Path(arguments.output), outputs.PAGE, force=arguments.force)
    with decided(arguments, Exhaustive()) as (result, find_costs):
        report = gather(arguments.network, result, find_costs())
    write_lines(arguments.output, [render(report, date.today())], "the page")
    lines = [*report.advice, ""]
    if arguments.plots:
        count = write_plots(report, arguments.plots, arguments.format)
        lines.append(f"{count} plots are in {arguments.plots}")
    show(*lines, f"Next: open {arguments.output} in a browser")

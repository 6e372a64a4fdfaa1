"""`mucudnn plan`: look at plan files."""

import argparse

from mucudnn.cli import options
from mucudnn.cli.terminal import show, table
from mucudnn.descriptor import short_text
from mucudnn.plan import read_plan
from mucudnn.sizes import format_size
from mucudnn.text import micro_batches, milliseconds

HELP = "show a plan"
DESCRIPTION = (
    "A plan holds, for each kernel, the configuration that was chosen and the others that were worth having."
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    show_parser = actions.add_parser(
        "show", help="print a plan as a table", description="Print a plan as a table."
    )
    show_parser.add_argument("plan", type=options.checked(options.path), metavar="PLAN")


def run(arguments: argparse.Namespace) -> None:
    """Print the header and the choices."""
    plan = read_plan(arguments.plan)
    rows = table()
    rows.add_column("kernel", overflow="fold")
    rows.add_column("chosen micro-batches", overflow="fold")
    for name in ("ms", "workspace", "others"):
        rows.add_column(name, justify="right", no_wrap=True)
    for kernel in plan.kernels:
        count = f" ×{kernel.count}" if kernel.count > 1 else ""
        others = sum(option != kernel.chosen for option in kernel.desirable)
        rows.add_row(
            f"{kernel.pass_} {short_text(kernel.problem)}{count}",
            micro_batches(kernel.chosen),
            milliseconds(kernel.chosen.time_ms),
            format_size(kernel.chosen.workspace),
            str(others),
        )
    show(*(f"{key}: {value}" for key, value in plan.header.items()), "", rows)

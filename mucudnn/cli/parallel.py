"""`mucudnn parallel`: training on several devices."""

import argparse

from mucudnn.cli import add_commands

HELP = "see what several devices gain, and why they idle"
DESCRIPTION = (
    "Plans a training step on several devices, compares ways to use them, and explains why they idle."
)
EXAMPLES = (
    "mucudnn parallel place googlenet --device titanx --bandwidth 150GiB",
    "mucudnn parallel project scaling.csv --speedup 2=1.4",
    "mucudnn parallel causes rank0.json rank1.json",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_commands(actions, {name: f"mucudnn.cli.{name}" for name in ("place", "project", "causes")})

"""`mucudnn demo`: figures of this machine within about a minute, and the Python that does the same."""

import argparse

from mucudnn.cli.options import JSON, add_arguments
from mucudnn.output.answers import Answer

HELP = "see in about a minute what mucudnn gains on this machine"
DESCRIPTION = (
    "Trains a small 3-D U-Net on the CPU in PyTorch: as it is, compiled by torch.compile, converted by "
    "mucudnn, and both. Prints the times of a step, and the lines of Python that convert your own model."
)
EXAMPLES = ("mucudnn demo",)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_arguments(parser, JSON)


def run(arguments: argparse.Namespace) -> Answer:
    """Run the training step in each way. Raises MissingExtraError."""
    import mucudnn.torch  # noqa: F401  # says how to install PyTorch
    from mucudnn.cli.demo_training import run_training

    return run_training()

"""`mucudnn demo`: figures of this machine within about a minute, and the Python that does the same."""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec

from mucudnn.cli.terminal import Terminal, prose, show, stdout
from mucudnn.extras import install_command
from mucudnn.output.text import bar, milliseconds, ratio

HELP = "see in about a minute what mucudnn gains on this machine"
DESCRIPTION = (
    "Trains a small 3-D U-Net on the CPU in PyTorch: as it is, compiled by torch.compile, converted by "
    "mucudnn, and both. Prints the times of a step, and the lines of Python that convert your own model. "
    "Without PyTorch it runs a few convolutions of NumPy arrays instead."
)
EXAMPLES = ("mucudnn demo",)
_BUSY = "Other programs kept the processors busy, so these times and speedups may be wrong."
_CONVERT = """\
The same in a program of your own:

    import mucudnn.torch

    mucudnn.torch.convert(model, workspace="{limit}")
    # Train as before. mucudnn.torch.restore(model) undoes it."""
_CONVOLVE = """\
The same in a program of your own:

    import mucudnn

    y = mucudnn.convolution_forward(x, w, padding=1, workspace="{limit}")"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Do nothing, because the demo has no arguments."""


def run(arguments: argparse.Namespace) -> None:
    """Run the demo of a training step, or that of convolutions where PyTorch is not installed."""
    if find_spec("torch") is None:
        _show_convolutions()
    else:
        _show_training()


def _show_training() -> None:
    import torch

    from mucudnn.cli.demo_training import LIMIT, SHAPE, run_training

    size = " × ".join(map(str, SHAPE[2:]))
    threads = torch.get_num_threads()
    data = f"{SHAPE[0]} volumes of {size}, {threads} CPU thread{'s' * (threads != 1)}"
    show(prose(f"A training step of a small 3-D U-Net: {data}"), "")
    result = run_training(Terminal())
    times = [way.seconds for way in result.ways]
    show(prose("Time of a step, and the speedup over stock PyTorch (shorter bars are faster):"), "")
    show(*_bars([way.name for way in result.ways], times), "")
    if result.is_busy:
        show(prose(_BUSY), "")
    for reason in dict.fromkeys(way.reason for way in result.ways if way.seconds is None):
        show(prose(f"Not run: {reason}"), "")
    difference = f"{result.difference:.0e}"
    show(prose(f"The first step's gradients are within {difference} of stock PyTorch's, by their norm."), "")
    show(_CONVERT.format(limit=LIMIT))


def _show_convolutions() -> None:
    from mucudnn.cli.demo_convolutions import LIMIT, run_convolutions

    show("Three convolutions of NumPy arrays in fp32, on one CPU thread", "")
    convolutions = run_convolutions(Terminal())
    for each in convolutions:
        show(each.name, *_bars(["  no workspace", f"  {LIMIT}"], [each.without, each.within]), "")
    if any(each.is_busy for each in convolutions):
        show(prose(_BUSY), "")
    difference = max(each.difference for each in convolutions)
    show(prose(f"The results differ by {difference:.0e} of their largest value at most."), "")
    show(_CONVOLVE.format(limit=LIMIT), "")
    show(f"Where PyTorch is installed, the demo trains a network: {install_command('torch')}")


def _bars(names: Sequence[str], seconds: Sequence[float | None]) -> list[str]:
    """Return a line for each name: a bar, the time, and the speedup over the first."""
    first, longest = seconds[0], max(filter(None, seconds))
    width = max(map(len, names))
    space = max(min(stdout().width, 80) - width - 24, 10)
    lines = []
    for name, time in zip(names, seconds, strict=True):
        if time is None:
            lines.append(f"{name:{width}}  not run")
            continue
        speedup = "" if time is first or first is None else f"  {ratio(first / time)}"
        lines.append(
            f"{name:{width}}  {bar(time / longest, space):{space}}  {milliseconds(time * 1e3):>6} ms{speedup}"
        )
    return lines

"""Flags that several commands share, and the conversion of their values."""

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from mucudnn import settings
from mucudnn.errors import UsageError
from mucudnn.input import expanded
from mucudnn.promises import CHOICES, NUMERICS, STRICT, Promise, promise_of
from mucudnn.sizes import parse_size

# An argument with the name of its value; the parser of the value, the tuple of its choices, or None for a
# flag without a value; and the help text.
Argument: TypeAlias = tuple[str, Any, str]


def add_arguments(parser: argparse._ActionsContainer, *arguments: Argument) -> None:
    """Declare arguments. The value of a flag that is not given is None; that of FILE+ or FILE* repeats."""
    for named, values, help_ in arguments:
        name, _, value = named.partition(" ")
        if values is None:
            parser.add_argument(name, action="store_true", default=None, help=help_)
        elif isinstance(values, tuple):
            parser.add_argument(name, choices=values, metavar=value or None, help=help_)
        elif value.endswith(("+", "*")):
            parser.add_argument(name, type=values, metavar=value[:-1], nargs=value[-1], help=help_)
        else:
            parser.add_argument(name, type=values, metavar=value, help=help_)


def add_actions(
    parser: argparse.ArgumentParser, *actions: tuple[Callable[..., Any], str, str, list[str], list[Argument]]
) -> dict[str, Any]:
    """Declare the actions of a command: a function, its help text, more text, examples and arguments of each.

    Return the parsers by the names of the actions, which are those of the functions.
    """
    added = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    for run, help_, more, examples, arguments in actions:
        text = f"{help_[0].upper()}{help_[1:]}.{more}"
        action = added.add_parser(run.__name__.strip("_"), help=help_, description=text, examples=examples)
        action.set_defaults(action=run)
        add_arguments(action, *arguments, JSON)
    return added.choices


def whole(what: str, most: int, least: int = 1) -> Callable[[str], int]:
    """Return the parser of a number from `least` to `most`, which raises UsageError."""

    def parse(text: str) -> int:
        if not re.fullmatch("[0-9]{1,10}", text) or not least <= int(text) <= most:
            raise UsageError(f"the {what} must be from {least} to {most}, not {text}")
        return int(text)

    return parse


def parse_bandwidth(text: str) -> int:
    """Parse bytes per second, at least 1. Raises UsageError."""
    bandwidth = parse_size(text)
    if not bandwidth:
        raise UsageError("a bandwidth must be above 0 bytes per second")
    return bandwidth


def parse_path(text: str) -> Path:
    """Parse a path, with the home directory for `~`. Raises UsageError if the text is empty."""
    if not text:
        raise UsageError("a path cannot be empty")
    return Path(expanded(text))


def numerics(exclusion: str) -> Argument:
    """Return the flag for the arithmetic."""
    text = f"strict: each result is a sum over its own window, {exclusion} (default: fast)"
    return "--numerics", NUMERICS, text


def batch_invariant(means: str) -> Argument:
    """Return the flag for results that depend on no other sample."""
    text = (
        "the bits of a sample's result and of its data gradient depend neither on the other samples nor on "
        f"their number: {means}"
    )
    return "--batch-invariant", None, text


parse_batch = whole("mini-batch", 2**31 - 1)
BATCH: Argument = ("--batch N", parse_batch, "mini-batch size (default: the network's own, else 64)")
LAYOUT: Argument = ("--layout", ("nchw", "nhwc"), "order of the axes (default: nchw)")
PROMISE: tuple[Argument, ...] = (
    numerics("without FFT, Winograd and TF32"),
    batch_invariant("one algorithm runs every mini-batch, and no time chooses it"),
    (
        "--choice",
        CHOICES,
        "fixed: measure nothing, and choose by a model of the costs, equally on equal machines (default: "
        "measured)",
    ),
)
THOROUGH: Argument = (
    "--thorough",
    None,
    "measure every algorithm at every size, in many runs, instead of a race between them",
)
ENGINE = "--engine auto|cudnn|host|PATH"
JSON: Argument = ("--json", None, "print JSON")


def strict_math(arguments: argparse.Namespace) -> str | None:
    """Return the math mode "strict" if the flags or MUCUDNN_NUMERICS ask for it, else None."""
    return STRICT if promise_of(arguments.numerics).is_strict else None


def promise_in(arguments: argparse.Namespace) -> Promise:
    """Return the promise of the flags; without a flag, that of the environment. Raises UsageError."""
    return promise_of(arguments.numerics, arguments.batch_invariant, arguments.choice)


def engine_options(arguments: argparse.Namespace) -> tuple[str, int]:
    """Return (engine, threads) of the flags; without a flag, of the environment."""
    engine = arguments.engine or settings.LIBRARY.read() or "auto"
    return engine, arguments.threads or default_threads()


def default_threads() -> int:
    """Return MUCUDNN_THREADS, or the number of cores that this process may use if it is unset."""
    return settings.THREADS.read() or len(os.sched_getaffinity(0))

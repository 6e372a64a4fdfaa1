"""Calls: the arguments that a decision depends on, in the types that mucudnn computes with."""

import logging
import os
import sys
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple, TypeVar

from mucudnn import settings
from mucudnn._native import Problem
from mucudnn.errors import ArgumentTypeError, UsageError, shown
from mucudnn.input import AnyPath, path_of
from mucudnn.listener import ProgressBar
from mucudnn.output.streams import columns, fill
from mucudnn.plans.plan import Plan
from mucudnn.problems.shapes import (
    Shape,
    Sizes,
    exact_layout,
    exact_size,
    exact_sizes,
    problem_of,
    shapes_of,
    whole_number,
)
from mucudnn.promises import Promise
from mucudnn.sizes import parse_limit, parse_size

PlanOrPath = Plan | AnyPath
T = TypeVar("T")
_logger = logging.getLogger("mucudnn")


class PassCall(NamedTuple):
    """The arguments of a call to one pass that its division depends on. `y` is None in the forward pass."""

    pass_: str
    device: str
    data_type: str
    layout: str
    x: Shape
    w: Shape
    y: Shape | None
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int
    workspace: int | str | None  # the limit; None stands for MUCUDNN_WORKSPACE_LIMIT
    math: str = "default"
    threads: int | None = None  # threads of the host engine; None stands for MUCUDNN_THREADS
    promise: Promise = Promise()
    deterministic: bool = False  # True if the algorithms must give the same bits in each run
    constant_filter: bool = False  # True if runs on the CPU may keep w in the algorithms' own form


def by_role(pass_: str, first: T, second: T, result: T) -> tuple[T, T, T]:
    """Return the values for x, w and y, from those of a pass's two tensors and of its result."""
    if pass_ == "forward":
        return first, second, result
    return (result, second, first) if pass_ == "backward_data" else (first, result, second)


def geometry(call: PassCall) -> tuple[Problem, dict[str, Shape]]:
    """Return a call's problem, and the shapes of x, w and y. Raises UsageError, ArgumentTypeError."""
    problem = problem_of(
        call.data_type, call.layout, call.x, call.w,
        call.stride, call.padding, call.dilation, call.groups, call.math,
    )  # fmt: skip
    shapes = shapes_of(problem, len(call.x) - 2)
    if call.y is not None and tuple(call.y) != shapes["y"]:
        raise UsageError(f"dy has the shape {tuple(call.y)}, but this convolution's output has {shapes['y']}")
    return problem, shapes


def limit_of(workspace: int | str | None) -> int | None:
    """Return a limit in bytes, or None if there is no limit. By default MUCUDNN_WORKSPACE_LIMIT applies.

    Raises UsageError, ArgumentTypeError.
    """
    if workspace is None:
        limit: int | None = settings.WORKSPACE_LIMIT.read()
        return limit
    return limit_in_bytes("workspace", workspace)


def limit_in_bytes(name: str, value: int | str) -> int | None:
    """Return the bytes of an argument, or None for "none". Raises UsageError, ArgumentTypeError."""
    return parse_limit(value) if isinstance(value, str) else bytes_of(name, value)


def bytes_of(name: str, value: int | str) -> int:
    """Return the bytes of an argument with this name. Raises UsageError, ArgumentTypeError."""
    if isinstance(value, str):
        return parse_size(value)
    size = whole_number(value)
    if size is None:
        raise ArgumentTypeError(f"{name} is {shown(value)}: give bytes, or text such as '64MiB'")
    if not 0 <= size < 2**63:
        raise UsageError(f"{name} is {shown(size)}: it must be at least 0 and below 2^63 bytes")
    return parse_size(str(size))  # refuses a small number without a unit


def known_plan(plan: PlanOrPath) -> Plan:
    """Return a plan, or the plan in a file, which is read once. Raises MucudnnError, ArgumentTypeError."""
    if isinstance(plan, Plan):
        return plan
    if not isinstance(plan, str | os.PathLike):
        raise ArgumentTypeError(f"plan is {type(plan).__name__}: give a Plan, or the path of one")
    return _read_plan(path_of(plan, "plan"))


_read_plan = cache(Plan.read)


def _has_exact_types(call: PassCall) -> bool:
    for value in (call.stride, call.padding, call.dilation, call.groups):
        if type(value) is not int:
            if type(value) is not tuple:
                return False
            for size in value:
                if type(size) is not int:
                    return False
    return type(call.layout) is str and (call.workspace is None or type(call.workspace) in (int, str))


def make_exact(call: PassCall) -> PassCall:
    """Return the call with ints, and tuples of ints, as sizes, or the call itself if it already has them.

    Without it, a call with 1.0 or True, which equal 1, would find the decision for 1 instead of an error.
    Raises UsageError, ArgumentTypeError.
    """
    if _has_exact_types(call):
        return call
    workspace = call.workspace
    if workspace is not None:
        workspace = str.__str__(workspace) if isinstance(workspace, str) else limit_of(workspace)
    return call._replace(
        layout=exact_layout(call.layout),
        stride=exact_sizes("stride", call.stride),
        padding=exact_sizes("padding", call.padding),
        dilation=exact_sizes("dilation", call.dilation),
        groups=exact_size("groups", call.groups),
        workspace=workspace,
    )


class LogListener(ProgressBar):
    """A listener that logs to the logger `mucudnn` and shows progress unless MUCUDNN_LOG is `off`."""

    def track(self, items: Iterable[T], title: str, total: int | None = None) -> Iterable[T]:
        """Return the items, with a progress bar on a terminal or in a notebook."""
        return items if settings.LOG.read() == "off" else super().track(items, title, total)

    def message(self, text: str) -> None:
        """Log a message at level info, or a warning at level warning."""
        level = logging.WARNING if text.startswith("Warning: ") else logging.INFO
        _logger.log(level, text)

    def conclude(self, text: str, *, is_shown: bool) -> None:
        """Log a text at level info. With `is_shown`, a terminal or a notebook on stderr shows it too."""
        _logger.info(text)
        is_hidden = _logger.isEnabledFor(logging.INFO) or settings.LOG.read() == "off"
        is_notebook = type(sys.stderr).__module__.startswith("ipykernel")
        if is_shown and not is_hidden and (is_notebook or columns(sys.stderr)):
            print(fill(f"mucudnn: {text}", sys.stderr), file=sys.stderr)

"""Flags that several commands share, and the conversion of their values."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mucudnn import settings
from mucudnn.costs.remeasuring import remeasure_from_now_on
from mucudnn.errors import UsageError
from mucudnn.input import expanded
from mucudnn.measuring.budget import Budget, current_budget, parse_budget
from mucudnn.plans.decide import Limits
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.policies import POLICIES
from mucudnn.problems.sources import Flags, bundled_networks, read_kernels
from mucudnn.promises import CHOICES, NUMERICS, STRICT, Promise, promise_of
from mucudnn.sizes import parse_limit, parse_size

T = TypeVar("T")


def checked(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Return `parse` for argparse, with its UsageError turned into an error of the flag."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return convert


def parse_batch(text: str) -> int:
    """Parse a mini-batch size from 1 to 2^31 - 1. Raises UsageError."""
    try:
        batch = int(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a mini-batch size") from None
    if not 1 <= batch < 2**31:
        raise UsageError(f"the mini-batch must be from 1 to {2**31 - 1}, not {text}")
    return batch


def parse_bandwidth(text: str) -> int:
    """Parse bytes per second, at least 1. Raises UsageError."""
    bandwidth = parse_size(text)
    if not bandwidth:
        raise UsageError("a bandwidth must be above 0 bytes per second")
    return bandwidth


def parse_passes(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list of passes, or `all`, into their usual order. Raises UsageError."""
    names = PASSES if text == "all" else text.split(",")
    for name in names:
        if name not in PASSES:
            raise UsageError(f"'{name}' is not a pass: give {', '.join(PASSES)} or all")
    return tuple(name for name in PASSES if name in names)


def add_kernel_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags that say which kernels to measure, and on which engine."""
    parser.add_argument(
        "network",
        metavar="NETWORK|FILE|DESCRIPTOR",
        help=f"{', '.join(bundled_networks())}; or a file with a descriptor in each line, as `mucudnn "
        "record` writes it; or one descriptor, such as mb64_ic64ih27_oc192_kh5_ph2",
    )
    parser.add_argument(
        "--batch",
        type=checked(parse_batch),
        metavar="N",
        help="mini-batch size (default: the descriptor's, else 64)",
    )
    parser.add_argument("--dtype", choices=("f32", "f64", "f16", "bf16"), help="data type (default: f32)")
    parser.add_argument("--layout", choices=("nchw", "nhwc"), help="order of the axes (default: nchw)")
    parser.add_argument(
        "--math",
        choices=("default", "tf32", "fma"),
        help="arithmetic allowed: cuDNN's default, tensor cores for f32 too, or none (default: default)",
    )
    add_numerics(parser, "without FFT, Winograd and TF32, whatever --math says")
    parser.add_argument(
        "--passes", type=checked(parse_passes), default=("forward",), metavar="PASSES",
        help=f"{', '.join(PASSES)}, several joined by commas, or all (default: forward)",
    )  # fmt: skip
    parser.add_argument(
        "--batch-policy",
        choices=POLICIES,
        help="micro-batch sizes to measure: powers of two and the mini-batch, all sizes up to the "
        "mini-batch, or the mini-batch alone (default: power_of_two)",
    )
    parser.add_argument(
        "--threads",
        type=checked(settings.parse_threads),
        metavar="N",
        help="threads of the host engine (default: 1)",
    )
    parser.add_argument(
        "--engine",
        metavar="auto|cudnn|host|PATH",
        help="library to compute with: NVIDIA's on a GPU (cudnn), the one for the CPU that comes with "
        "mucudnn (host), or another library with cuDNN's functions (default: auto, which is cudnn where "
        "that works, else host)",
    )


def add_numerics(parser: argparse.ArgumentParser, exclusion: str) -> None:
    """Declare the flag for the arithmetic."""
    parser.add_argument(
        "--numerics",
        choices=NUMERICS,
        help=f"strict: each result is a sum over its own window, {exclusion} (default: fast)",
    )


def add_batch_invariant(parser: argparse.ArgumentParser) -> None:
    """Declare the flag for results that depend on no other sample."""
    parser.add_argument(
        "--batch-invariant",
        action="store_const",
        const=True,
        help="the bits of a sample's result and of its data gradient depend neither on the other samples nor "
        "on their number: one algorithm runs every mini-batch, and no time chooses it",
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Declare the flag for choices that no clock makes."""
    parser.add_argument(
        "--choice",
        choices=CHOICES,
        help="fixed: measure nothing, and choose by a model of the costs, equally on equal machines "
        "(default: measured)",
    )


def add_budget(parser: argparse.ArgumentParser) -> None:
    """Declare the flag for the time that measurements may take."""
    parser.add_argument(
        "--budget",
        type=checked(parse_budget),
        metavar="TIME",
        help="the time that measurements may take, such as 30s or 5min; later runs make those that are left "
        "(default: none)",
    )


def add_thorough(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that measures without a race."""
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="measure every algorithm at every size, in many runs, instead of a race between them",
    )


def add_workspace_option(parser: argparse._ActionsContainer) -> None:
    """Declare the flag for the workspace limit of each kernel."""
    parser.add_argument(
        "--workspace", type=checked(parse_limit), metavar="SIZE", default=argparse.SUPPRESS,
        help="the limit of each kernel: the most scratch memory that it may use, such as 64MiB, or none "
        "(default: 64MiB). All kernels can then reuse one workspace (WR, workspace reuse)",
    )  # fmt: skip


def add_remeasure(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that measures again."""
    parser.add_argument(
        "--remeasure",
        action="store_true",
        help="measure again what the cache has already (default: MUCUDNN_REMEASURE)",
    )


def obey_remeasure(arguments: argparse.Namespace) -> None:
    """Measure again from now on if the flag says so."""
    if arguments.remeasure:
        remeasure_from_now_on()


def add_decision_options(parser: argparse.ArgumentParser) -> None:
    """Declare the flags for the limits of a decision and for the measurements that it uses."""
    limit = parser.add_mutually_exclusive_group()
    add_workspace_option(limit)
    limit.add_argument(
        "--total-workspace", type=checked(parse_size), metavar="SIZE",
        help="instead of a limit for each kernel, the most that all kernels may use together, such as 1GiB. "
        "It is divided among them (WD, workspace division): for frameworks that keep a workspace for each "
        "layer",
    )  # fmt: skip
    parser.add_argument(
        "--exact",
        action="store_true",
        help="with --total-workspace: find the fastest division, however long that takes (default: one "
        "within 0.01%% of it)",
    )
    parser.add_argument(
        "--no-run",
        action="store_true",
        help="do not compare the chosen divisions with the best undivided algorithms by running both whole",
    )
    add_budget(parser)
    add_remeasure(parser)
    parser.add_argument(
        "--replay", type=checked(parse_path), metavar="CACHE",
        help="measure nothing: decide from this cache",
    )  # fmt: skip


def kernels_of(arguments: argparse.Namespace) -> list[Kernel]:
    """Return the kernels that the flags ask for. Raises UsageError."""
    math = strict_math(arguments) or arguments.math
    flags = Flags(arguments.batch, arguments.dtype, arguments.layout, math)
    return read_kernels(arguments.network, flags, arguments.passes)


def strict_math(arguments: argparse.Namespace) -> str | None:
    """Return the math mode "strict" if the flags or MUCUDNN_NUMERICS ask for it, else None."""
    return STRICT if promise_of(arguments.numerics).is_strict else None


def promise_in(arguments: argparse.Namespace) -> Promise:
    """Return the promise of the flags; without a flag, that of the environment. Raises UsageError."""
    invariant, choice = (getattr(arguments, name, None) for name in ("batch_invariant", "choice"))
    return promise_of(arguments.numerics, invariant, choice)


def policy_of(arguments: argparse.Namespace) -> str:
    """Return the policy of the flag; without the flag, that of the environment."""
    return str(arguments.batch_policy or settings.BATCH_POLICY.read())


def workspace_of(arguments: argparse.Namespace) -> int | None:
    """Return the workspace limit of the flag in bytes; without the flag, that of the environment."""
    limit: int | None = arguments.workspace if "workspace" in arguments else settings.WORKSPACE_LIMIT.read()
    return limit


def limits_of(arguments: argparse.Namespace) -> Limits:
    """Return the limits that the decision flags give."""
    if arguments.total_workspace is not None:
        return Limits(total=arguments.total_workspace, exact=arguments.exact)
    if arguments.exact:
        raise UsageError("--exact is about the division of a total: give --total-workspace as well")
    return Limits(workspace=workspace_of(arguments))


def budget_of(arguments: argparse.Namespace) -> Budget:
    """Return the budget of the flag; without the flag, that of the environment."""
    return current_budget() if arguments.budget is None else Budget(arguments.budget)


def engine_options(arguments: argparse.Namespace) -> tuple[str, int]:
    """Return (engine, threads) of the flags; without a flag, of the environment."""
    engine = arguments.engine or settings.LIBRARY.read() or "auto"
    return engine, arguments.threads or settings.THREADS.read()


def kernel_flags(arguments: argparse.Namespace) -> list[str]:
    """Return the user's flags that select the kernels, for the command to type next."""
    flags = []
    of_problem = "--batch", "--dtype", "--layout", "--math", "--numerics"
    for flag in (*of_problem, "--batch-invariant", "--choice", "--batch-policy", "--threads", "--engine"):
        value = getattr(arguments, flag[2:].replace("-", "_"), None)
        if value is not None:
            flags += [flag] if value is True else [flag, str(value)]
    if arguments.passes != ("forward",):
        flags += ["--passes", ",".join(arguments.passes)]
    return flags


def add_json(parser: argparse.ArgumentParser) -> None:
    """Declare the flag that prints JSON, which docs/reference/json.md describes."""
    parser.add_argument("--json", action="store_true", help="print JSON")


def parse_path(text: str) -> Path:
    """Parse a path, with the home directory for `~`. Raises UsageError if the text is empty."""
    if not text:
        raise UsageError("a path cannot be empty")
    return Path(expanded(text))


def parse_output(text: str) -> Path:
    """Parse the path of a file to write. Raises UsageError if it cannot be written.

    The check comes before the measurements, so that no long run ends with this error.
    """
    file = parse_path(text)
    if file.is_dir():
        raise UsageError(f"'{text}' is a folder, not a file to write")
    if not file.parent.is_dir():
        raise UsageError(f"'{text}' cannot be written: there is no folder '{file.parent}'")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise UsageError(f"'{text}' cannot be written: the file, or its folder, is read-only")
    return file


def parse_plot(text: str) -> Path:
    """Parse the path of a plot to write. Raises UsageError."""
    file = parse_output(text)
    if file.suffix not in (".svg", ".png"):
        raise UsageError(f"'{text}' is neither a .svg nor a .png: use one of these suffixes")
    return file

"""`mucudnn optimize`: measure the kernels of a network, and choose micro-batches and algorithms for them."""

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from pathlib import Path

from mucudnn import settings
from mucudnn.cli import measure, networks, options, outputs
from mucudnn.cli.decisions import Decided
from mucudnn.cli.options import add_arguments
from mucudnn.cli.sweep import Swept
from mucudnn.cli.terminal import Terminal, opened_cache
from mucudnn.costs.cache import Cache
from mucudnn.costs.remeasuring import remeasure_from_now_on
from mucudnn.costs.table import CostTable
from mucudnn.errors import UsageError
from mucudnn.forks import no_fork
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.budget import Budget, current_budget, parse_budget
from mucudnn.measuring.described_device import bundled_devices
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.runners import Exhaustive, Race
from mucudnn.output.answers import Answer
from mucudnn.output.files import write_lines
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import open_replay, optimize
from mucudnn.plans.plan import write_plan
from mucudnn.plans.result import Result, to_plan
from mucudnn.plans.sweep import parse_sizes, sweep
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import POLICIES, micro_batch_sizes
from mucudnn.problems.sources import Flags
from mucudnn.sizes import parse_limit, parse_size

HELP = "choose micro-batches and algorithms within a workspace limit"
DESCRIPTION = (
    "Measures what the cache lacks, in a race that skips unlikely choices. Chooses the fastest division of "
    "each kernel's mini-batch within the limit, and runs it whole, interleaved with the best undivided "
    "algorithm. A kernel is one convolution in one pass. The choice comes from its desirable set: the "
    "divisions for which no other is both faster and smaller in workspace."
)
EXAMPLES = (
    "mucudnn optimize alexnet --workspace 64MiB",
    "mucudnn optimize net:build --input 16x3x224x224 --inference",
    "mucudnn optimize resnet18 --total-workspace 512MiB --output resnet18.plan",
    "mucudnn optimize resnet50 --replay cache.sqlite --page resnet50.html",
    "mucudnn optimize resnet50 --measure-only",
    "mucudnn optimize mb64_ic64ih27_oc192_kh5_ph2 --sizes 1-64 --json",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_arguments(
        parser,
        *networks.ARGUMENTS,
        ("--dtype", ("f32", "f64", "f16", "bf16"), "data type (default: f32)"),
        ("--inference", None, "decide the forward pass alone (default: the three passes of training)"),
    )  # fmt: skip
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--workspace", type=parse_limit, metavar="SIZE", default=argparse.SUPPRESS,
        help="the limit of each kernel: the most scratch memory that it may use, such as 64MiB, or none "
        "(default: 64MiB). All kernels can then reuse one workspace (WR, workspace reuse)",
    )  # fmt: skip
    add_arguments(
        limit,
        (
            "--total-workspace SIZE", parse_size,
            "instead of a limit for each kernel, the most that all kernels may use together, such as 1GiB. "
            "It is divided among them (WD, workspace division): for frameworks that keep a workspace for "
            "each layer",
        ),
    )  # fmt: skip
    add_arguments(
        parser,
        (
            options.ENGINE, str,
            "library to compute with: NVIDIA's on a GPU (cudnn), the one for the CPU that comes with mucudnn "
            "(host), or another library with cuDNN's functions (default: auto, which is cudnn where that "
            "works, else host)",
        ),
        ("--threads N", settings.parse_threads, "threads of the host engine (default: all cores)"),
        *options.PROMISE,
        (
            "--budget TIME", parse_budget,
            "the time that measurements may take, such as 30s or 5min; later runs make those that are left "
            "(default: none)",
        ),
        ("--remeasure", None, "measure again what the cache has already (default: MUCUDNN_REMEASURE)"),
        options.THOROUGH,
        (
            "--no-run", None,
            "do not compare the chosen divisions with the best undivided algorithms by running both whole",
        ),
    )  # fmt: skip
    add_arguments(
        parser.add_mutually_exclusive_group(),
        (
            "--measure-only", None,
            "measure every algorithm into the cache, and decide nothing; several processes with one cache, "
            "such as one on each GPU, divide the work",
        ),
        (
            "--sizes SIZES", parse_sizes,
            "decide for these mini-batches instead, 1-64 or 8,16,32 or powers (of two, up to the "
            "mini-batch), and show those at which the time of a sample jumps",
        ),
        (
            "--device-properties FILE", str,
            "without a GPU: ask cuDNN for the workspaces of its engines, but no times, on the device that "
            f"this file of `mucudnn doctor` describes, or on {', '.join(bundled_devices())}",
        ),
    )  # fmt: skip
    add_arguments(
        parser,
        ("--replay CACHE", options.parse_path, "measure nothing: decide from this cache"),
        ("--machine TEXT", str, "with --replay: a part of the machine's name, if the cache has several"),
        (
            "--output PLAN", outputs.PLAN.parse,
            "write the choices, with each kernel's desirable set, to this plan file",
        ),
        (
            "--page HTML", outputs.PAGE.parse,
            "measure thoroughly, and write a page that shows time against workspace for each kernel and the "
            "whole network, and the gain from more memory",
        ),
        ("--notes", None, "say of each kernel why it does not run the best prediction"),
        options.JSON,
    )  # fmt: skip
    add_arguments(
        parser.add_argument_group("advanced"),
        (
            "--math", ("default", "tf32", "fma"),
            "arithmetic allowed: cuDNN's default, tensor cores for f32 too, or none (default: default)",
        ),
        (
            "--batch-policy", POLICIES,
            "micro-batch sizes to measure: powers of two and the mini-batch, all sizes up to the mini-batch, "
            "or the mini-batch alone (default: power_of_two)",
        ),
        (
            "--exact", None,
            "with --total-workspace: find the fastest division, however long that takes (default: one within "
            "0.01%% of it)",
        ),
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> Answer:
    """Decide, or only measure, as the flags say."""
    math = options.strict_math(arguments) or arguments.math
    flags = Flags(arguments.batch, arguments.dtype, arguments.layout, math)
    kernels = networks.read_kernels(arguments, flags)
    policy = str(arguments.batch_policy or settings.BATCH_POLICY.read())
    if arguments.remeasure:
        remeasure_from_now_on()
    sweeps = arguments.sizes is not None
    if (arguments.measure_only or arguments.device_properties or sweeps) and (
        arguments.output or arguments.page
    ):
        raise UsageError(
            "--output and --page need decisions: omit --measure-only, --sizes and --device-properties"
        )
    if arguments.replay and (arguments.measure_only or arguments.device_properties):
        raise UsageError("--replay measures nothing: omit --measure-only and --device-properties")
    if arguments.device_properties:
        library, _ = options.engine_options(arguments)
        return measure.plan_engines(library, arguments.device_properties, kernels, policy)
    if arguments.replay:
        return _replay(arguments, kernels, policy)
    engine, terminal = open_engine(*options.engine_options(arguments)), Terminal()
    budget = current_budget() if arguments.budget is None else Budget(arguments.budget)
    if sweeps:
        budget = Budget()  # all sizes are needed
    races = not (arguments.thorough or arguments.page or arguments.measure_only or sweeps)
    with opened_cache(terminal, needed=bool(arguments.measure_only)) as cache, budget.applied():
        bench = Bench(engine, cache, terminal, Race() if races else Exhaustive())
        if arguments.measure_only:
            command = _repeat(arguments).replace(" --measure-only", "")
            return measure.measure(bench, kernels, policy, command)
        return _sweep(arguments, bench, kernels) if sweeps else _decide(arguments, bench, kernels, policy)


def _sweep(arguments: argparse.Namespace, bench: Bench, kernels: Sequence[Kernel]) -> Answer:
    limit = _workspace(arguments)
    sweeps = sweep(bench, kernels, arguments.sizes, limit)
    command = re.sub(r" --sizes[ =]('[^']*'|\S+)", "", _repeat(arguments))
    return Swept(bench.machine, limit, bench.made.total(), tuple(sweeps), arguments.network, command)


def _replay(arguments: argparse.Namespace, kernels: list[Kernel], policy: str) -> Answer:
    promise = options.promise_in(arguments)
    if not promise.is_timed:
        raise UsageError(f"--replay decides by recorded times, which '{promise}' excludes: leave it out")
    sizes = arguments.sizes
    whole = (
        kernels
        if sizes is None
        else [
            kernel.at(size)
            for kernel in kernels
            for size in sizes or micro_batch_sizes(policy, kernel.mini_batch)
        ]
    )
    with Cache.read_only(arguments.replay) as cache:
        bench = open_replay(cache, whole, Terminal(), machine=arguments.machine or "")
        if sizes is not None:
            return _sweep(arguments, bench, kernels)
        return _decide(arguments, bench, kernels, policy)


def _decide(arguments: argparse.Namespace, bench: Bench, kernels: list[Kernel], policy: str) -> Answer:
    promise = options.promise_in(arguments)
    run = not arguments.no_run
    result = optimize(bench, kernels, policy, _limits(arguments), run=run, promise=promise)
    find_costs = partial(CostTable.read, bench.cache, result.machine, kernels)
    if arguments.page and not promise.is_timed:
        with no_fork:
            from mucudnn.measuring.modelled_costs import modelled_table

        find_costs = partial(modelled_table, bench, kernels, policy)
    return _finish(arguments, result, find_costs)


def _finish(arguments: argparse.Namespace, result: Result, find_costs: Callable[[], CostTable]) -> Answer:
    """Write the plan and the page, and return the answer."""
    advice: Sequence[str] = ()
    if arguments.output:
        write_plan(to_plan(result), arguments.output)
    if arguments.page:
        from mucudnn.report.gather import gather
        from mucudnn.report.page import render

        report = gather(arguments.network, result, find_costs())
        write_lines(arguments.page, [render(report, date.today())], "the page")
        advice = report.advice
    return Decided(result, arguments.network, advice, _next_command(arguments), arguments.notes)


def _next_command(arguments: argparse.Namespace) -> str:
    """Return what to do with the page or plan that was written, or the command that writes the plan."""
    if arguments.page:
        return f"open {arguments.page} in a browser"
    if arguments.output:
        return shlex.join(["mucudnn", "plan", "show", str(arguments.output)])
    name = Path(arguments.network).stem
    plan = f"{name}.plan" if re.fullmatch(r"[\w.-]{1,40}", name) else "mucudnn.plan"
    return f"{_repeat(arguments)} --output {plan}"


def _repeat(arguments: argparse.Namespace) -> str:
    """Return the command that the user typed."""
    return shlex.join(["mucudnn", *arguments.words])


def _workspace(arguments: argparse.Namespace) -> int | None:
    limit: int | None = arguments.workspace if "workspace" in arguments else settings.WORKSPACE_LIMIT.read()
    return limit


def _limits(arguments: argparse.Namespace) -> Limits:
    if arguments.total_workspace is not None:
        return Limits(total=arguments.total_workspace, exact=bool(arguments.exact))
    if arguments.exact:
        raise UsageError("--exact is about the division of a total: give --total-workspace as well")
    return Limits(workspace=_workspace(arguments))

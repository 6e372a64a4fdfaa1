"""`mucudnn optimize`: choose micro-batches and algorithms for the kernels of a network."""

import argparse
import re
import shlex
from pathlib import Path

from mucudnn.cli import options, outputs
from mucudnn.cli.decisions import decided
from mucudnn.cli.optimize_table import show_result
from mucudnn.cli.terminal import show_json
from mucudnn.measuring.budget import spell_budget
from mucudnn.measuring.runners import Exhaustive, Race
from mucudnn.plans.plan import write_plan
from mucudnn.plans.result import to_json, to_plan
from mucudnn.sizes import spell_limit

HELP = "choose micro-batches and algorithms within a workspace limit"
DESCRIPTION = (
    "Measures what the cache lacks, in a race that skips unlikely choices. Chooses the fastest division of "
    "each kernel's mini-batch within the limit, and runs it whole, interleaved with the best undivided "
    "algorithm. A kernel is one convolution in one pass. The choice comes from its desirable set: the "
    "divisions for which no other is both faster and smaller in workspace."
)
EXAMPLES = (
    "mucudnn optimize alexnet --workspace 64MiB",
    "mucudnn optimize resnet18 --passes all --total-workspace 512MiB --output resnet18.plan",
    "mucudnn optimize mb64_ic64ih27_oc192_kh5_ph2 --engine host --thorough --json",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_kernel_options(parser)
    options.add_batch_invariant(parser)
    options.add_choice(parser)
    options.add_decision_options(parser)
    written = "write the choices, with each kernel's desirable set, to this plan file"
    outputs.add_output(parser, "PLAN", written)
    parser.add_argument(
        "--thorough",
        action="store_true",
        help="measure every algorithm at every size, in many runs, instead of a race between them",
    )
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure, decide, and print the result as a table or as JSON."""
    outputs.check(arguments.output, outputs.PLAN, force=arguments.force)
    with decided(arguments, Exhaustive() if arguments.thorough else Race()) as (result, _):
        if arguments.output:
            write_plan(to_plan(result), arguments.output)
        if arguments.json:
            show_json(to_json(result))
        else:
            show_result(result, arguments.network, _next_command(arguments))


def _next_command(arguments: argparse.Namespace) -> str:
    """Return the command that writes the plan, or shows it if it is already written."""
    if arguments.output:
        return shlex.join(["mucudnn", "plan", "show", str(arguments.output)])
    words = ["mucudnn", "optimize", arguments.network, *options.kernel_flags(arguments)]
    if arguments.total_workspace is not None:
        words += ["--total-workspace", spell_limit(arguments.total_workspace)]
    elif "workspace" in arguments:
        words += ["--workspace", spell_limit(arguments.workspace)]
    words += [
        flag
        for flag in ("--exact", "--no-run", "--thorough")
        if getattr(arguments, flag[2:].replace("-", "_"))
    ]
    if arguments.budget is not None:
        words += ["--budget", spell_budget(arguments.budget)]
    if arguments.replay:
        words += ["--replay", str(arguments.replay)]
    name = Path(arguments.network).stem
    plan = f"{name}.plan" if re.fullmatch(r"[\w.-]{1,40}", name) else "mucudnn.plan"
    return shlex.join([*words, "--output", plan])

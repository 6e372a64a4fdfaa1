"""`mucudnn optimize`: choose micro-batches and algorithms for the kernels of a network."""

import argparse
import re
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

from mucudnn.cli import options, outputs
from mucudnn.cli.decisions import decided
from mucudnn.cli.terminal import WIDTH, prose, show, show_json, stdout, table
from mucudnn.measuring.budget import spell_budget
from mucudnn.measuring.runners import Exhaustive, Race
from mucudnn.output.text import micro_batches, milliseconds, ratio, short_names, wrapped
from mucudnn.plans.decide import Decision
from mucudnn.plans.plan import write_plan
from mucudnn.plans.result import (
    Result,
    final,
    has_shares,
    measured,
    predicted,
    split_shares,
    to_json,
    to_plan,
    total,
    total_workspace,
)
from mucudnn.problems.kernels import PASSES
from mucudnn.sizes import format_size, spell_limit

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
_COLUMNS = (
    "kernel", "best undivided", ">ms", " chosen micro-batches", ">ms", ">predicted", ">measured", ">workspace"
)  # fmt: skip
# Lines of a part, such as a group of channels, that the narrow table of 80 columns need not fold.
_PARTS = textwrap.TextWrapper(39, initial_indent=" ", subsequent_indent="   ", break_long_words=False)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_kernel_options(parser)
    options.add_batch_invariant(parser)
    options.add_choice(parser)
    options.add_decision_options(parser)
    written = "write the choices, with each kernel's desirable set, to this plan file"
    outputs.add_output(parser, "PLAN", written)
    options.add_thorough(parser)
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


def show_result(result: Result, network: str, next_command: str) -> None:
    """Print the table of a result, a sentence for each division that was dropped, and the next command."""
    limits = result.limits
    within = (
        f"{format_size(limits.total)} of workspace in total"
        if limits.mode == "wd"
        else f"{format_size(limits.workspace)} of workspace for each kernel"
        if limits.workspace is not None
        else "no limit on workspace"
    )
    names = short_names([decision.kernel.label for decision in result.decisions])
    passes = [name for name in PASSES if any(decision.kernel.pass_ == name for decision in result.decisions)]
    one_problem = len({decision.kernel.problem for decision in result.decisions}) == 1
    ran = any(decision.comparison for decision in result.decisions)
    narrow = (0, 3, 4, 6 if ran else 5, 7)
    shown = range(len(_COLUMNS)) if stdout().width >= WIDTH else narrow
    # A gap of 2 would push the longest names of algorithms beyond 100 columns.
    rows = table(*(_COLUMNS[column] for column in shown), gap=1)

    def add_row(cells: Sequence[str]) -> None:
        rows.add_row(*(cells[column] for column in shown))

    for pass_ in passes:
        if len(passes) > 1 and not one_problem:
            rows.add_section()
            rows.add_row(wrapped(pass_), style="bold")
        for name, decision in zip(names, result.decisions, strict=True):
            if decision.kernel.pass_ == pass_:
                add_row(_make_cells(pass_ if one_problem else name, decision))
                for share in decision.shares:
                    add_row([f"  {share.kernel.count} apart", *_make_cells("", share)[1:]])
    rows.add_section()
    add_row(_make_total_cells("total", result))
    if has_shares(result):
        add_row(_make_total_cells("total apart", split_shares(result)))
    batches = {decision.kernel.problem.mini_batch for decision in result.decisions}
    batch = f", mini-batch {batches.pop()}" if len(batches) == 1 else ""
    promised = f", {result.promise}" if str(result.promise) else ""
    head = f"{network}: {', '.join(passes)}{batch}, within {within}{promised}"
    sentences = list(filter(None, map(_explain, names, result.decisions)))
    if not any(
        decision.groups or each.divided.is_divided for decision in result.decisions for each in decision.each
    ):
        sentences.append(_explain_undivided(result))
    if has_shares(result):
        sentences.append(
            "Rows `apart` let identical kernels differ, which is faster within the same total. mucudnn.torch "
            "follows them. `mucudnn run` cannot tell identical kernels apart, and follows the other rows."
        )
    times = (
        "Times are of whole runs. A plan keeps the predicted ones: the sums of its micro-batches' times."
        if ran
        else "Times are modelled: they order the choices, and nothing was measured."
        if not result.promise.is_timed
        else "Times are predicted: the sums of the micro-batches' times. Nothing was run whole."
    )
    sentences = [*map(prose, sentences), *[""] * bool(sentences)]
    machine = prose(f"on {result.machine}")
    show(prose(head), machine, "", rows, "", prose(times), "", *sentences, f"Next: {next_command}")


def _make_cells(name: str, decision: Decision) -> list[str]:
    times, compared = final(decision), measured(decision)
    count = f" ×{decision.kernel.count}" if decision.kernel.count > 1 else ""
    return [
        wrapped(name + count),
        decision.undivided.parts[0].algorithm if decision.undivided else "nothing fits",
        milliseconds(times.undivided_ms),
        "\n".join(map(_PARTS.fill, micro_batches(decision.best).splitlines())),
        milliseconds(times.divided_ms),
        ratio(predicted(decision).speedup),
        ratio(compared.speedup if compared else None),
        format_size(decision.best.workspace),
    ]


def _make_total_cells(name: str, result: Result) -> list[str]:
    sums, compared = total(result.decisions), any(decision.comparison for decision in result.decisions)
    return [
        name,
        "",
        milliseconds(sums.undivided_ms),
        "",
        milliseconds(sums.divided_ms),
        ratio(total(result.decisions, predicted).speedup),
        ratio(sums.speedup if compared else None),
        format_size(total_workspace(result)),
    ]


def _explain_undivided(result: Result) -> str:
    """Return the sentence that says why no kernel is divided."""
    if any(decision.is_busy for decision in result.decisions):
        return "Nothing is divided: the machine is busy. Run the command again when it is idle."
    if any(decision.outrun for decision in result.decisions):
        return "Nothing is divided: run whole, no division was faster than the best undivided algorithms."
    return (
        "Nothing is divided: within the limit, no division was predicted to be faster than the best "
        "undivided algorithm. A smaller limit or a larger mini-batch may change that."
    )


def _explain(name: str, decision: Decision) -> str:
    """Return a sentence about why a kernel does not run the best prediction, or "" if it does."""
    divided, outrun = decision.divided, decision.outrun
    if outrun is None:
        return ""
    way = f"runs in {micro_batches(divided, ' + ')}" if divided.is_divided else "stays undivided"
    expected, reached = (
        f"{milliseconds(times.divided_ms)} ms" if times.speedup is None else ratio(times.speedup)
        for times in (predicted(outrun), final(outrun))
    )
    why = (
        "other programs disturbed too many of its whole runs"
        if decision.is_busy
        else f"run whole it reached {reached}"
    )
    slow = micro_batches(outrun.divided, " + ")
    return f"{name} {decision.kernel.pass_} {way}: {slow} was predicted at {expected}, but {why}."

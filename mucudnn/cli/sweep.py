"""`mucudnn sweep`: show time against mini-batch size, and the sizes at which it jumps."""

import argparse
import shlex
from typing import Any

from rich.table import Table

from mucudnn.cli import options, outputs
from mucudnn.cli.terminal import Terminal, opened_cache, show, show_json, table
from mucudnn.costs.records import Machine
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.budget import Budget
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.runners import Exhaustive
from mucudnn.output.text import micro_batches, milliseconds, ratio, short_names
from mucudnn.plans.json_forms import groups_json, kernel_fields, machine_json
from mucudnn.plans.sweep import Cliff, Sweep, parse_sizes, sweep
from mucudnn.problems.descriptor import short_text
from mucudnn.sizes import format_size, spell_limit
from mucudnn.solver import ChannelGroups, Configuration

HELP = "time kernels at many mini-batch sizes and find cliffs"
DESCRIPTION = (
    "Makes the measurements that the cache lacks of each kernel at each mini-batch size. Shows the sizes at "
    "which the time of a sample jumps (cliffs), and the time with the mini-batch or the channels divided."
)
EXAMPLES = (
    "mucudnn sweep mb64_ic64ih27_oc192_kh5_ph2 --sizes 1-64",
    "mucudnn sweep alexnet --sizes 8,16,32 --plot alexnet.svg",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    options.add_kernel_options(parser)
    parser.add_argument(
        "--sizes", type=options.checked(parse_sizes), metavar="SIZES", default=argparse.SUPPRESS,
        help="1-64, or 8,16,32, or powers (of two, up to the mini-batch; default: the sizes of the policy)",
    )  # fmt: skip
    options.add_workspace_option(parser)
    outputs.add_plot(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Measure, print the sweeps as tables or as JSON, and draw them."""
    outputs.check_plot(arguments)
    kernels = options.kernels_of(arguments)
    policy = "power_of_two" if "sizes" in arguments else options.policy_of(arguments)
    sizes = arguments.sizes if "sizes" in arguments else None
    limit = options.workspace_of(arguments)
    engine, terminal = open_engine(*options.engine_options(arguments)), Terminal()
    with opened_cache(terminal, needed=False) as cache, Budget().applied():  # a sweep needs all sizes
        bench = Bench(engine, cache, terminal, Exhaustive())
        sweeps = sweep(bench, kernels, sizes, policy, limit)
    names = short_names([k.name or short_text(k.problem, mini_batch=False) for k in kernels])
    titles = [f"{name} {kernel.pass_}" for name, kernel in zip(names, kernels, strict=True)]
    if arguments.plot:
        from mucudnn.report.command_plots import write_sweeps

        write_sweeps(dict(zip(titles, sweeps, strict=True)), arguments.plot)
    if arguments.json:
        show_json(_make_json(sweeps, bench.machine, limit, bench.made.total()))
        return
    allowed = f"{format_size(limit)} of workspace" if limit is not None else "any workspace"
    lines: list[Table | str] = [f"{arguments.network}: within {allowed}", f"on {bench.machine}", ""]
    for title, swept in zip(titles, sweeps, strict=True):
        lines += [title, _make_table(swept), ""]
        lines += [cliff_sentence(cliff, limit) for cliff in swept.cliffs] or ["No cliff."]
        lines += [""]
    show(*lines, f"Next: {_next_command(arguments, sweeps, limit)}")


def _make_table(swept: Sweep) -> Table:
    undivided, divided = (">mini-batch", ">ms", ">ms/sample"), (">divided ms", ">ms/sample")
    rows = table(*undivided, "", *divided, "micro-batches")
    cliffs = {cliff.point.mini_batch for cliff in swept.cliffs}
    for point in swept.points:
        rows.add_row(
            str(point.mini_batch),
            milliseconds(point.undivided.time_ms if point.undivided else None),
            _format_fine(point.per_sample),
            "cliff" if point.mini_batch in cliffs else "",
            milliseconds(point.divided.time_ms if point.divided else None),
            _format_fine(point.divided_per_sample),
            micro_batches(point.divided) if point.divided else "nothing fits",
        )
    return rows


def cliff_sentence(cliff: Cliff, limit: int | None) -> str:
    """Return a sentence about the jump at a cliff, and about the time that division gives there."""
    point, before = cliff.point, cliff.before
    if point.undivided is None:
        jump = f"At {point.mini_batch} nothing undivided fits {format_size(limit)} of workspace"
    else:
        assert point.per_sample is not None
        assert before.per_sample is not None
        jump = (
            f"From {before.mini_batch} to {point.mini_batch} the time of a sample jumps "
            f"{ratio(point.per_sample / before.per_sample)}, from {_format_fine(before.per_sample)} to "
            f"{_format_fine(point.per_sample)} ms"
        )
    if point.divided is None or point.divided == point.undivided:
        return f"{jump}; division does not help."
    parts, per_sample = micro_batches(point.divided, " + "), _format_fine(point.divided_per_sample)
    return f"{jump}; divided into {parts} it is {per_sample} ms."


def _format_fine(value: float | None) -> str:
    """Format the milliseconds of one sample, with three significant digits below 1 ms; a dash for None."""
    return milliseconds(value) if value is None or value >= 1 else f"{value:.3g}"


def _next_command(arguments: argparse.Namespace, sweeps: list[Sweep], limit: int | None) -> str:
    """Return the command that optimizes at the first cliff, or at the mini-batch if there is no cliff."""
    flags = argparse.Namespace(**vars(arguments))
    cliffs = [cliff for swept in sweeps for cliff in swept.cliffs]
    if cliffs:
        flags.batch = cliffs[0].point.mini_batch
    words = ["mucudnn", "optimize", flags.network, *options.kernel_flags(flags)]
    return shlex.join([*words, "--workspace", spell_limit(limit)])


def _make_json(sweeps: list[Sweep], machine: Machine, limit: int | None, new: int) -> dict[str, Any]:
    return {
        **machine_json(machine),
        "workspace_limit": limit,
        "new_measurements": new,
        "kernels": [
            {
                **kernel_fields(swept.kernel, swept.kernel.count),
                "points": [
                    {
                        "mini_batch": point.mini_batch,
                        "undivided": _make_configuration_json(point.undivided),
                        "undivided_is_busy": point.is_busy,
                        "divided": _make_configuration_json(point.divided),
                    }
                    for point in swept.points
                ],
                "cliffs": [cliff.point.mini_batch for cliff in swept.cliffs],
            }
            for swept in sweeps
        ],
    }


def _make_configuration_json(configuration: Configuration | ChannelGroups | None) -> dict[str, Any] | None:
    if configuration is None:
        return None
    if isinstance(configuration, ChannelGroups):
        return groups_json(configuration)
    return {
        "parts": [{"micro_batch": p.micro_batch, "algorithm": p.algorithm} for p in configuration.parts],
        "time_ms": configuration.time_ms,
        "workspace": configuration.workspace,
    }

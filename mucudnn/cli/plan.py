"""`mucudnn plan`: show plan files, compare them, and check that they hold on this machine."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from mucudnn.cli import options
from mucudnn.cli.examples import format_examples
from mucudnn.cli.memory_table import show_plan as show_memory_plan
from mucudnn.cli.terminal import Terminal, show, show_json, table
from mucudnn.codec import parse_json
from mucudnn.errors import MucudnnError, shown
from mucudnn.measuring.engines import open_engine
from mucudnn.output.text import micro_batches, milliseconds, ratio
from mucudnn.plans.any_plan import read_plan
from mucudnn.plans.devices.spatial_plan import SpatialPlan, SpatialStage
from mucudnn.plans.json_forms import checks_json, difference_json, plan_json
from mucudnn.plans.memory.json_form import memory_json
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.plans.verify import KernelCheck, machine_differences, verify
from mucudnn.problems.descriptor import short_text
from mucudnn.problems.kernels import Kernel
from mucudnn.settings import LIBRARY, parse_threads
from mucudnn.sizes import format_size

HELP = "show, verify and compare plans"
DESCRIPTION = (
    "A plan has the chosen configuration and the desirable set of each kernel. The desirable set holds the "
    "configurations for which no other is both faster and smaller in workspace."
)
EXAMPLES = (
    "mucudnn plan show net.plan",
    "mucudnn plan verify net.plan",
    "mucudnn plan diff old.plan new.plan",
)

_NAMED_ENGINES = ("host", "cudnn")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    showing = actions.add_parser(
        "show",
        help="print a plan as a table",
        description="Print a plan as a table.",
        epilog=format_examples("mucudnn plan show net.plan", "mucudnn plan show net.plan --json"),
    )
    verifying = actions.add_parser(
        "verify",
        help="check that a plan holds on this machine",
        description="Check that the library still has each algorithm of a plan with its workspace, and run "
        "the choices whole. The exit code is 1 if the plan does not hold any more, or if a choice takes more "
        "than 1.25 times as long as planned.",
        epilog=format_examples(
            "mucudnn plan verify net.plan", "mucudnn plan verify net.plan --no-run --engine host"
        ),
    )
    verifying.add_argument("--no-run", action="store_true", help="check the library only, run nothing")
    verifying.add_argument(
        "--engine",
        metavar="auto|cudnn|host|PATH",
        help="library to verify with (default: host or cudnn, whichever the plan names)",
    )
    for action, parser_ in ((_show, showing), (_verify, verifying)):
        parser_.add_argument(
            "plan",
            type=options.checked(options.parse_path),
            metavar="PLAN",
            help="a file that `mucudnn optimize --output` wrote; `show` takes plans of any kind",
        )
        parser_.set_defaults(action=action)
    comparing = actions.add_parser(
        "diff",
        help="print the differences between two plans",
        description="Print the differences between two plans: in their headers, and in the chosen "
        "micro-batches, algorithms, workspaces, shares and groups of channels. The exit code is 1 if "
        "there are any.",
        epilog=format_examples("mucudnn plan diff old.plan new.plan"),
    )
    comparing.add_argument(
        "--times", action="store_true", help="compare measured times and the desirable sets, too"
    )
    for name, help_ in (("old", "a plan"), ("new", "the plan to compare with it")):
        comparing.add_argument(
            name, type=options.checked(options.parse_path), metavar=name.upper(), help=help_
        )
    comparing.set_defaults(action=_diff)
    for parser_ in (showing, verifying, comparing):
        options.add_json(parser_)


def run(arguments: argparse.Namespace) -> None:
    """Run the action."""
    arguments.action(arguments)


def _show(arguments: argparse.Namespace) -> None:
    plan = read_plan(arguments.plan)  # once, because the file may be a pipe
    if isinstance(plan, Plan):
        show_json(plan_json(plan)) if arguments.json else _show_convolutions(plan, arguments.plan)
    elif isinstance(plan, SpatialPlan):
        show_json(parse_json(str(plan))) if arguments.json else _show_spatial(plan)
    else:
        show_json(memory_json(plan)) if arguments.json else show_memory_plan(plan)


def _show_convolutions(plan: Plan, path: Path) -> None:
    rows = table("kernel", "chosen micro-batches", ">predicted ms", ">workspace", ">others")
    for kernel in plan.kernels:
        others = sum(option != kernel.chosen for option in kernel.desirable)
        for name, answer in (
            (_format_name(kernel), kernel.chosen),
            *((f"  {count} of them apart", share) for count, share in kernel.shares),
            ("  in groups of channels", kernel.groups),
        ):
            if answer is not None:
                time, size = answer.time_ms, format_size(answer.workspace)
                first = str(others) if answer is kernel.chosen else ""
                rows.add_row(name, micro_batches(answer), milliseconds(time), size, first)
    show(
        *(f"{key}: {value}" for key, value in plan.header.items()),
        "",
        rows,
        "",
        f"Next: mucudnn plan verify {path}",
    )


def _show_spatial(plan: SpatialPlan) -> None:
    """Print the mesh, the layers of the chosen plan, and the other meshes."""
    layers = table("convolution", "place", ">ranks", ">ms", ">exchange ms", ">received", ">others ms")
    meshes = table("mesh", "gather before", ">step ms", ">memory of a rank", ">fits")
    for layer in plan.layers:
        layers.add_row(
            layer.name,
            layer.place,
            str(layer.ranks or "–"),
            milliseconds(layer.time_ms),
            milliseconds(layer.exchange_ms),
            format_size(layer.halo_bytes),
            milliseconds(layer.others_ms),
        )
    for candidate in plan.candidates:
        fits = "yes" if candidate.fits else "no"
        cells = milliseconds(candidate.time_ms), format_size(candidate.memory), fits
        meshes.add_row(_format_mesh(candidate.mesh), _format_stages(candidate.stages) or "–", *cells)
    axes = ", ".join(f"axis {axis} over {name}" for axis, name in plan.axes.items()) or "no axis"
    show(
        f"mesh: {_format_mesh(plan.mesh)}",
        f"divided: {axes}",
        f"gather before: {_format_stages(plan.stages) or 'never'}",
        f"memory limit of a rank: {format_size(plan.memory_limit)}",
        *plan.notes,
        "",
        layers,
        "",
        meshes,
    )


def _format_stages(stages: Sequence[SpatialStage]) -> str:
    return ", ".join(
        f"{stage.before} (then over {' × '.join(stage.divided)})" if stage.divided else stage.before
        for stage in stages
    )


def _format_mesh(mesh: dict[str, int]) -> str:
    return " × ".join(f"{name}={size}" for name, size in mesh.items())


def _verify(arguments: argparse.Namespace) -> None:
    plan = Plan.read(arguments.plan)
    choice = arguments.engine or _engine_of(plan, arguments.plan)
    engine = open_engine(choice, parse_threads(plan.header.get("threads", "1")))
    elsewhere = machine_differences(plan, engine)
    checks = [] if elsewhere else verify(plan, engine, Terminal(), run=not arguments.no_run)
    if arguments.json:
        show_json(checks_json(checks, elsewhere))
    if elsewhere:
        raise MucudnnError(f"{arguments.plan} does not hold here: {'; '.join(elsewhere)}")
    if not arguments.json:
        _show_checks(checks)
    failed = sum(bool(check.complaints) for check in checks)
    slower = sum(check.slower is not None for check in checks)
    if failed:
        raise MucudnnError(f"{failed} of the plan's {len(checks)} kernels do not hold any more")
    if slower:
        raise MucudnnError(
            f"{slower} of the plan's {len(checks)} kernels take longer than planned; make the plan again "
            "with mucudnn optimize --remeasure"
        )


def _show_checks(checks: Sequence[KernelCheck]) -> None:
    rows = table("kernel", "chosen micro-batches", ">predicted ms", ">ms now", "")
    for check in checks:
        chosen = check.kernel.chosen
        rows.add_row(
            _format_name(check.kernel),
            micro_batches(chosen),
            milliseconds(chosen.time_ms),
            milliseconds(check.time_ms),
            "" if check.slower is None else f"{ratio(check.slower)} slower",
        )
    show(rows, "")
    for check in checks:
        show(*(f"{_format_name(check.kernel)}: {complaint}" for complaint in check.complaints))
    if disturbed := sum(check.is_busy for check in checks):
        show(f"{disturbed} of {len(checks)} times are missing: other programs disturbed too many runs.")
    if not any(check.complaints or check.slower for check in checks):
        show(f"{len(checks)} of {len(checks)} kernels hold.")


def _engine_of(plan: Plan, path: Path) -> str:
    """Return the engine that a plan names, or MUCUDNN_LIBRARY's instead of the host engine.

    Raises MucudnnError if the plan names a path, because opening a library runs its code.
    """
    named = plan.header.get("engine")
    if named not in (None, *_NAMED_ENGINES):
        raise MucudnnError(
            f"{path} names the engine {shown(named)}: a plan can only name {' or '.join(_NAMED_ENGINES)}. To "
            "verify with another library, which runs its code, give --engine PATH"
        )
    if named == "cudnn":  # the search for cuDNN reads MUCUDNN_LIBRARY itself
        return named
    return LIBRARY.read() or named or "auto"


def _diff(arguments: argparse.Namespace) -> None:
    old, new = Plan.read(arguments.old), Plan.read(arguments.new)
    headers = {
        key: (old.header.get(key), new.header.get(key))
        for key in dict.fromkeys([*old.header, *new.header])
        if old.header.get(key) != new.header.get(key) and (arguments.times or key != "measured_at")
    }
    before, after = _index_by_kernel(old), _index_by_kernel(new)
    pairs = [(before.get(key), after.get(key)) for key in dict.fromkeys([*before, *after])]
    changed = [
        (was, is_)
        for was, is_ in pairs
        if _compared_fields(was, times=arguments.times) != _compared_fields(is_, times=arguments.times)
    ]
    if arguments.json:
        show_json(difference_json(headers, changed))
    elif not headers and not changed:
        show("The choices are the same.")
    else:
        show(*(f"{key}: {was or '–'} → {is_ or '–'}" for key, (was, is_) in headers.items()))
        if changed:
            show("", _make_table(arguments, changed))
    if headers or changed:
        raise MucudnnError(
            f"{arguments.old} and {arguments.new} differ in {len(changed)} kernel{'s' * (len(changed) != 1)} "
            f"and {len(headers)} line{'s' * (len(headers) != 1)} of the header"
        )


def _make_table(
    arguments: argparse.Namespace, changed: Sequence[tuple[PlanKernel | None, PlanKernel | None]]
) -> Table:
    rows = table("kernel", arguments.old.name, arguments.new.name)
    for was, is_ in changed:
        cells = (_format_choice(kernel, others=arguments.times) for kernel in (was, is_))
        rows.add_row(_format_name(was or is_), *cells)
    return rows


def _index_by_kernel(plan: Plan) -> dict[Kernel, PlanKernel]:
    return {planned.kernel: planned for planned in plan.kernels}


def _format_name(kernel: PlanKernel | None) -> str:
    assert kernel is not None
    return f"{kernel.pass_} {short_text(kernel.problem)}" + (f" ×{kernel.count}" if kernel.count > 1 else "")


def _compared_fields(kernel: PlanKernel | None, *, times: bool) -> object:
    if kernel is None or times:
        return kernel
    answers = [kernel.chosen, kernel.groups, *(share for _, share in kernel.shares)]
    parts = [
        answer and [(part.size, part.algorithm, part.workspace) for part in answer.parts]
        for answer in answers
    ]
    return kernel.count, [count for count, _ in kernel.shares], parts


def _format_choice(kernel: PlanKernel | None, *, others: bool) -> str:
    if kernel is None:
        return "–"
    lines = [
        micro_batches(kernel.chosen),
        f"{milliseconds(kernel.chosen.time_ms)} ms, {format_size(kernel.chosen.workspace)}",
    ]
    if kernel.groups is not None:
        lines.append(f"in {micro_batches(kernel.groups, ' + ')}")
    lines += [f"{count} of them apart {micro_batches(share, ' + ')}" for count, share in kernel.shares]
    if others:
        lines.append(f"of {len(kernel.desirable)} in the desirable set")
    return "\n".join(lines)

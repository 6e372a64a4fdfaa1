"""`mucudnn plan`: look at plan files, compare them, and hold them against this machine."""

import argparse

from mucudnn.cli import options
from mucudnn.cli.terminal import Terminal, show, table
from mucudnn.errors import MucudnnError
from mucudnn.measuring.buffers import memory_cap
from mucudnn.measuring.engines import open_engine
from mucudnn.plans.plan import Plan, PlanKernel, read_plan
from mucudnn.plans.text import micro_batches, milliseconds
from mucudnn.plans.verify import foreign, verify
from mucudnn.problems.descriptor import short_text
from mucudnn.settings import LIBRARY, parse_threads
from mucudnn.sizes import format_size

HELP = "show, verify and compare plans"
DESCRIPTION = (
    "A plan holds, for each kernel, the configuration that was chosen and the others that were worth having."
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    showing = actions.add_parser(
        "show", help="print a plan as a table", description="Print a plan as a table."
    )
    verifying = actions.add_parser(
        "verify",
        help="hold a plan against this machine",
        description="Look whether each algorithm of a plan is still there with its workspace, and run the "
        "choices whole. The exit code is 1 where the plan does not hold any more.",
    )
    verifying.add_argument("--no-run", action="store_true", help="look only, run nothing")
    for action, parser_ in ((_show, showing), (_verify, verifying)):
        parser_.add_argument(
            "plan",
            type=options.checked(options.path),
            metavar="PLAN",
            help="what `mucudnn optimize --output` wrote",
        )
        parser_.set_defaults(action=action)
    comparing = actions.add_parser(
        "diff",
        help="print in what two plans differ",
        description="Print in what two plans differ. The exit code is 1 where they do.",
    )
    for name in ("old", "new"):
        comparing.add_argument(name, type=options.checked(options.path), metavar=name.upper())
    comparing.set_defaults(action=_diff)


def run(arguments: argparse.Namespace) -> None:
    """Do what was asked for."""
    arguments.action(arguments)


def _show(arguments: argparse.Namespace) -> None:
    plan = read_plan(arguments.plan)
    rows = table()
    rows.add_column("kernel", overflow="fold")
    rows.add_column("chosen micro-batches", overflow="fold")
    for name in ("predicted ms", "workspace", "others"):
        rows.add_column(name, justify="right", no_wrap=True)
    for kernel in plan.kernels:
        others = sum(option != kernel.chosen for option in kernel.desirable)
        rows.add_row(
            _name(kernel),
            micro_batches(kernel.chosen),
            milliseconds(kernel.chosen.time_ms),
            format_size(kernel.chosen.workspace),
            str(others),
        )
        if kernel.tiles is not None:
            rows.add_row(
                "  in tiles of a sample",
                micro_batches(kernel.tiles),
                milliseconds(kernel.tiles.time_ms * kernel.problem.mini_batch),
                format_size(kernel.tiles.workspace),
                "",
            )
    show(
        *(f"{key}: {value}" for key, value in plan.header.items()),
        "",
        rows,
        "",
        f"Next: mucudnn plan verify {arguments.plan}",
    )


def _verify(arguments: argparse.Namespace) -> None:
    plan = read_plan(arguments.plan)
    choice = plan.header.get("engine", "auto")
    if choice != "cudnn":  # which looks for the library itself
        choice = LIBRARY.read() or choice
    engine = open_engine(choice, parse_threads(plan.header.get("threads", "1")))
    elsewhere = foreign(plan, engine)
    if elsewhere:
        raise MucudnnError(f"{arguments.plan} does not hold here: {'; '.join(elsewhere)}")
    findings = verify(plan, engine, memory_cap(engine), Terminal(), run=not arguments.no_run)
    rows = table()
    for name in ("kernel", "chosen micro-batches"):
        rows.add_column(name, overflow="fold")
    for name in ("plan's ms", "ms now"):
        rows.add_column(name, justify="right", no_wrap=True)
    for finding in findings:
        chosen = finding.kernel.chosen
        rows.add_row(
            _name(finding.kernel),
            micro_batches(chosen),
            milliseconds(chosen.time_ms),
            milliseconds(finding.time_ms),
        )
    show(rows, "")
    for finding in findings:
        show(*(f"{_name(finding.kernel)}: {complaint}" for complaint in finding.complaints))
    failed = sum(bool(finding.complaints) for finding in findings)
    if failed:
        raise MucudnnError(f"{failed} of the plan's {len(findings)} kernels do not hold any more")
    slower = sum(finding.slower is not None for finding in findings)
    show(
        f"{len(findings)} of {len(findings)} kernels hold."
        + (f" {slower} took longer than planned." if slower else "")
    )


def _diff(arguments: argparse.Namespace) -> None:
    old, new = read_plan(arguments.old), read_plan(arguments.new)
    headers = [
        f"{key}: {old.header.get(key, '–')} → {new.header.get(key, '–')}"
        for key in dict.fromkeys([*old.header, *new.header])
        if old.header.get(key) != new.header.get(key)
    ]
    before, after = _by_kernel(old), _by_kernel(new)
    rows = table()
    for name in ("kernel", arguments.old.name, arguments.new.name):
        rows.add_column(name, overflow="fold")
    changed = 0
    for key in dict.fromkeys([*before, *after]):
        was, is_ = before.get(key), after.get(key)
        if _said(was) != _said(is_):
            changed += 1
            rows.add_row(_name(was or is_), _choice(was), _choice(is_))
    if not headers and not changed:
        show("The choices are the same.")
        return
    show(*headers)
    if changed:
        show("", rows)
    raise MucudnnError(
        f"{arguments.old} and {arguments.new} differ in {changed} kernel{'s' * (changed != 1)} and "
        f"{len(headers)} line{'s' * (len(headers) != 1)} of the header"
    )


def _by_kernel(plan: Plan) -> dict[tuple[str, str], PlanKernel]:
    return {(str(kernel.problem), kernel.pass_): kernel for kernel in plan.kernels}


def _name(kernel: PlanKernel | None) -> str:
    assert kernel is not None
    return f"{kernel.pass_} {short_text(kernel.problem)}" + (f" ×{kernel.count}" if kernel.count > 1 else "")


def _said(kernel: PlanKernel | None) -> object:
    return kernel and (kernel.chosen, kernel.tiles, kernel.count)


def _choice(kernel: PlanKernel | None) -> str:
    if kernel is None:
        return "–"
    lines = [
        micro_batches(kernel.chosen),
        f"{milliseconds(kernel.chosen.time_ms)} ms, {format_size(kernel.chosen.workspace)}",
    ]
    if kernel.tiles is not None:
        lines.append(f"in tiles of a sample {micro_batches(kernel.tiles, ' + ')}")
    return "\n".join(lines)

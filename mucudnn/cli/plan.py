"""`mucudnn plan`: show plan files, and check that they hold on this machine."""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mucudnn.cli import options
from mucudnn.cli.memory_table import ShownMemory
from mucudnn.cli.terminal import Terminal
from mucudnn.codec import parse_json
from mucudnn.errors import MucudnnError, shown
from mucudnn.measuring.engines import open_engine
from mucudnn.measuring.intervals import UNDECIDED
from mucudnn.output.answers import Answer, Lines, table
from mucudnn.output.text import micro_batches
from mucudnn.plans.any_plan import read_plan
from mucudnn.plans.devices.spatial_plan import SpatialPlan, SpatialStage
from mucudnn.plans.json_forms import configuration_json, groups_json, kernel_fields
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.plans.stream_plan import StreamPlan
from mucudnn.plans.verify import FAILS, HOLDS, SLOWER, KernelCheck, machine_differences, verify
from mucudnn.problems.descriptor import short_text
from mucudnn.settings import LIBRARY, parse_threads
from mucudnn.sizes import format_size

HELP = "show and verify plans"
DESCRIPTION = (
    "A plan has the chosen configuration and the desirable set of each kernel. The desirable set holds the "
    "configurations for which no other is both faster and smaller in workspace."
)
EXAMPLES = (
    "mucudnn plan show net.plan",
    "mucudnn plan verify net.plan",
)

_NAMED_ENGINES = ("host", "cudnn")


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    plan = (
        "plan PLAN",
        options.parse_path,
        "a file that a command's --output wrote; `show` takes plans of any kind",
    )
    options.add_actions(
        parser,
        (_show, "print a plan as a table", "", ["mucudnn plan show net.plan"], [plan]),
        (
            _verify, "check that a plan holds on this machine",
            " The library must still have each algorithm with its workspace, and the choices run whole. The "
            "exit code is 1 if the plan does not hold any more, or if a choice takes more than 1.25 times as "
            "long as planned. It is undecided if the 95 % interval of its median time has that bound in it.",
            ["mucudnn plan verify net.plan", "mucudnn plan verify net.plan --no-run --engine host"],
            [
                plan,
                ("--no-run", None, "check the library only, run nothing"),
                (
                    options.ENGINE, str,
                    "library to verify with (default: host or cudnn, whichever the plan names)",
                ),
            ],
        ),
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> Answer:
    """Run the action."""
    answer: Answer = arguments.action(arguments)
    return answer


@dataclass(frozen=True)
class ShownPlan(Answer):
    """A plan of convolutions, which a file has."""

    plan: Plan
    path: Path

    def content(self) -> dict[str, Any]:
        """Return the form that docs/reference/json.md describes."""
        return {
            "header": self.plan.header,
            "kernels": [
                {
                    **kernel_fields(planned.kernel, planned.count),
                    "chosen": configuration_json(planned.chosen),
                    "groups": planned.groups and groups_json(planned.groups),
                    "shares": [
                        {"count": count, **configuration_json(share)} for count, share in planned.shares
                    ],
                    "desirable": [configuration_json(option) for option in planned.desirable],
                }
                for planned in self.plan.kernels
            ],
        }

    def lines(self) -> Lines:
        """Yield the header, a table of the kernels, and the next command."""
        yield from (f"{key}: {value}" for key, value in self.plan.header.items())
        yield ""
        heads = ("kernel", "chosen micro-batches", "ms>predicted ms", "B>workspace", ">others")
        yield table(*heads, rows=self._rows())
        yield ""
        yield f"Next: mucudnn plan verify {self.path}"

    def _rows(self) -> Iterator[Sequence[Any]]:
        for kernel in self.plan.kernels:
            for name, answer in (
                (_format_name(kernel), kernel.chosen),
                *((f"  {count} of them apart", share) for count, share in kernel.shares),
                ("  in groups of channels", kernel.groups),
            ):
                if answer is not None:
                    others = sum(option != answer for option in kernel.desirable)
                    first = others if answer is kernel.chosen else ""
                    yield name, micro_batches(answer), answer.time_ms, answer.workspace, first


@dataclass(frozen=True)
class ShownSpatial(Answer):
    """A spatial plan."""

    plan: SpatialPlan

    def content(self) -> dict[str, Any]:
        """Return the plan as its file has it, in JSON."""
        return dict(parse_json(str(self.plan)))

    def lines(self) -> Lines:
        """Yield the mesh, the layers of the chosen plan, and the other meshes."""
        plan = self.plan
        axes = ", ".join(f"axis {axis} over {name}" for axis, name in plan.axes.items()) or "no axis"
        yield f"mesh: {_format_mesh(plan.mesh)}"
        yield f"divided: {axes}"
        yield f"gather before: {_format_stages(plan.stages) or 'never'}"
        yield f"memory limit of a rank: {format_size(plan.memory_limit)}"
        yield from plan.notes
        yield ""
        yield table(
            "name", "place", ">ranks", "ms>time ms", "ms>exchange ms", "B>halo bytes", "ms>others ms",
            rows=map(vars, plan.layers),
        )  # fmt: skip
        yield ""
        yield table(
            "mesh", "gather before", "ms>time ms", "B>memory", "fits",
            rows=(
                {
                    **vars(candidate),
                    "mesh": _format_mesh(candidate.mesh),
                    "gather_before": _format_stages(candidate.stages) or None,
                }
                for candidate in plan.candidates
            ),
        )  # fmt: skip


@dataclass(frozen=True)
class ShownStream(Answer):
    """A plan of tiles."""

    plan: StreamPlan

    def content(self) -> dict[str, Any]:
        """Return the plan as its file has it, in JSON."""
        return dict(parse_json(self.plan.text()))

    def lines(self) -> Lines:
        """Yield the passes."""
        yield str(self.plan)


def _show(arguments: argparse.Namespace) -> Answer:
    plan = read_plan(arguments.plan)  # once, because the file may be a pipe
    if isinstance(plan, Plan):
        return ShownPlan(plan, arguments.plan)
    if isinstance(plan, StreamPlan):
        return ShownStream(plan)
    return ShownSpatial(plan) if isinstance(plan, SpatialPlan) else ShownMemory(plan)


def _format_stages(stages: Sequence[SpatialStage]) -> str:
    return ", ".join(
        f"{stage.before} (then over {' × '.join(stage.divided)})" if stage.divided else stage.before
        for stage in stages
    )


def _format_mesh(mesh: dict[str, int]) -> str:
    return " × ".join(f"{name}={size}" for name, size in mesh.items())


@dataclass(frozen=True)
class Verified(Answer):
    """The checks of a plan's kernels. `elsewhere` says how its machine differs from this one."""

    path: Path
    elsewhere: Sequence[str]
    checks: Sequence[KernelCheck]

    @property
    def failure(self) -> str:  # type: ignore[override]
        """Return why the plan does not hold, or nothing."""
        if self.elsewhere:
            return f"{self.path} does not hold here: {'; '.join(self.elsewhere)}"
        results, count = self._results, f"of the plan's {len(self.checks)} kernels"
        if results[FAILS]:
            return f"{results[FAILS]} {count} do not hold any more"
        if results[SLOWER]:
            return (
                f"{results[SLOWER]} {count} take longer than planned; make the plan again with mucudnn "
                "optimize --remeasure"
            )
        return ""

    @property
    def _results(self) -> Counter[str]:
        return Counter(check.result for check in self.checks)

    def content(self) -> dict[str, Any]:
        """Return the form that docs/reference/json.md describes."""
        return {
            "holds": None if self._results[UNDECIDED] and not self.failure else not self.failure,
            "machine": self.elsewhere,
            "kernels": [
                {
                    **kernel_fields(check.kernel.kernel, check.kernel.count),
                    "predicted_ms": check.kernel.chosen.time_ms,
                    "now_ms": check.time_ms,
                    "result": check.result,
                    "complaints": check.complaints,
                }
                for check in self.checks
            ],
        }

    def lines(self) -> Lines:
        """Yield a table of the kernels, and what is wrong with them."""
        if self.elsewhere:
            return
        yield table(
            "kernel", "chosen micro-batches", "ms>predicted ms", "ms>ms now", "result",
            rows=(
                (_format_name(check.kernel), micro_batches(check.kernel.chosen), check.kernel.chosen.time_ms,
                 check.time_ms, check.result)
                for check in self.checks
            ),
        )  # fmt: skip
        yield ""
        for check in self.checks:
            yield from (f"{_format_name(check.kernel)}: {complaint}" for complaint in check.complaints)
        count, results = len(self.checks), self._results
        if results[UNDECIDED]:
            yield (
                f"{results[UNDECIDED]} of {count} kernels are undecided: their times vary too much, or other "
                "programs made them longer. Verify the plan again."
            )
        if not self.failure:
            yield f"{results[HOLDS]} of {count} kernels hold."


def _verify(arguments: argparse.Namespace) -> Answer:
    plan = Plan.read(arguments.plan)
    choice = arguments.engine or _engine_of(plan, arguments.plan)
    engine = open_engine(choice, parse_threads(plan.header.get("threads", "1")))
    elsewhere = machine_differences(plan, engine)
    checks = [] if elsewhere else verify(plan, engine, Terminal(), run=not arguments.no_run)
    return Verified(arguments.plan, elsewhere, checks)


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


def _format_name(kernel: PlanKernel) -> str:
    return f"{kernel.pass_} {short_text(kernel.problem)}" + (f" ×{kernel.count}" if kernel.count > 1 else "")

"""Plans: the choice for each kernel, and the text form, which the C++ code reads and writes too."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from mucudnn._native import NewerVersionError, Problem, format_plan, parse_plan
from mucudnn.errors import ArgumentTypeError, NewerFileError, shown
from mucudnn.input import AnyPath, path_of, read_document
from mucudnn.output.files import write_lines
from mucudnn.output.table import html_table
from mucudnn.output.text import micro_batches
from mucudnn.problems.descriptor import short_text
from mucudnn.problems.kernels import Kernel
from mucudnn.promises import NUMERICS, STRICT, Promise, promise_named
from mucudnn.sizes import format_size
from mucudnn.solver import (
    ChannelGroup,
    ChannelGroups,
    Configuration,
    MicroConfiguration,
    Shares,
)

# The header's fields for the text of a promise, and for the limit of each kernel.
PROMISE, LIMIT = "promise", "workspace_limit"


@dataclass(frozen=True)
class PlanKernel:
    """One kernel's chosen configuration, and the desirable set from which it was chosen.

    The desirable set holds the configurations for which no other is both faster and smaller in workspace.
    `count` is the number of the kernel's occurrences.

    `shares` let the identical kernels differ: each is a number of kernels and their configuration, and the
    first layers take the first share. Shares and choices are two ways to use the same total workspace.
    Functions and `mucudnn run` cannot tell layers apart, so they run the choices. `shares` is empty if the
    two ways agree.

    `groups` divide the channels, and each group the mini-batch; None if groups are not faster within the
    limit.
    """

    kernel: Kernel
    count: int
    chosen: Configuration
    desirable: tuple[Configuration, ...]
    shares: Shares = ()
    groups: ChannelGroups | None = None

    @property
    def problem(self) -> Problem:
        """The problem of the kernel."""
        return self.kernel.problem

    @property
    def pass_(self) -> str:
        """The pass of the kernel."""
        return self.kernel.pass_

    @property
    def answers(self) -> tuple[Configuration, ...]:
        """The choice, and the configurations of the shares."""
        return self.chosen, *(share for _, share in self.shares)

    def share_of_layer(self, layer: int, layers: int) -> Configuration:
        """Return the configuration of one of the layers that may run a kernel with shares.

        The first layers take the first share. A layer that runs several of the identical kernels takes the
        least workspace of their shares. If the kernels cannot be spread evenly over the layers, all layers
        take the share with the least workspace, so that they never need more than the shares together.
        `layer` is the layer's place among these `layers`, from 0.
        """
        taken = [share for count, share in self.shares for _ in range(count)]
        each, rest = divmod(len(taken), layers)
        own = taken if rest or not each else taken[layer * each : (layer + 1) * each]
        return min(own, key=lambda share: share.workspace)


@dataclass(frozen=True)
class Plan:
    """The choices for a network. The header names the machine that they were measured on."""

    header: dict[str, str] = field(default_factory=dict)
    kernels: tuple[PlanKernel, ...] = ()

    def find(self, kernel: Kernel) -> PlanKernel | None:
        """Return the plan's entry for a kernel, or None if it has none."""
        return next((planned for planned in self.kernels if planned.kernel == kernel), None)

    @property
    def promise(self) -> Promise:
        """The promise that the choices keep. They are strict if all kernels have strict arithmetic."""
        promise = promise_named(self.header.get(PROMISE, ""))
        is_strict = bool(self.kernels) and all(kernel.problem.math == STRICT for kernel in self.kernels)
        return promise._replace(numerics=NUMERICS[is_strict])

    @property
    def digest(self) -> str:
        """A hash of the text form."""
        # Not a cached_property, because before Python 3.12 its lock may be held in a child of fork().
        digest: str | None = self.__dict__.get("_digest")
        if digest is None:
            digest = self.__dict__["_digest"] = hashlib.sha256(str(self).encode()).hexdigest()[:32]
        return digest

    def _repr_html_(self) -> str:
        """Return a table of the choices, which notebooks show."""
        title = ", ".join(f"{name} {value}" for name, value in self.header.items())
        rows = []
        for k in self.kernels:
            chosen = k.groups or k.chosen
            text, time_ms = micro_batches(chosen, " + "), chosen.time_ms
            name, size = short_text(k.problem), format_size(chosen.workspace)
            rows.append((k.pass_, name, str(k.count), text, f"{time_ms:.4g}", size))
            for count, share in k.shares:
                text, size = micro_batches(share, " + "), format_size(share.workspace)
                rows.append(("", f"{count} of them apart", "", text, f"{share.time_ms:.4g}", size))
        return html_table(
            title, ("pass", "kernel", "count", "micro-batches", "predicted ms", "workspace"), rows
        )

    def __str__(self) -> str:
        return format_plan(
            self.header,
            [
                (
                    k.problem,
                    k.pass_,
                    k.count,
                    _list_parts(k.chosen),
                    [_list_parts(option) for option in k.desirable],
                    [(count, _list_parts(share)) for count, share in k.shares],
                    [] if k.groups is None else _list_groups(k.groups),
                )
                for k in self.kernels
            ],
        )

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """Return the plan that a text describes. Raises ValueError with the number of the wrong line."""
        header, kernels = parse_plan(text)
        return cls(
            header,
            tuple(
                PlanKernel(
                    Kernel(problem, pass_),
                    count,
                    _make_configuration(chosen),
                    tuple(map(_make_configuration, desirable)),
                    tuple((number, _make_configuration(share)) for number, share in shares),
                    _make_groups(groups) if groups else None,
                )
                for problem, pass_, count, chosen, desirable, shares, groups in kernels
                if chosen  # a kernel in a journal may have candidates but no choice
            ),
        )

    @classmethod
    def read(cls, path: AnyPath) -> "Plan":
        """Read a plan from a file.

        Raises MucudnnError with the file and line that cannot be read, NewerFileError for the plan of a newer
        version, and ArgumentTypeError if `path` is not a path.
        """
        return read_document(path, "plan", parse_plan_text)


def promise_fields(promise: Promise) -> dict[str, str]:
    """Return the header's fields of a promise, which are none for the usual one."""
    return {PROMISE: text} if (text := str(promise)) else {}


def write_plan(plan: Plan, path: AnyPath) -> None:
    """Write a plan to a file, whole or not at all.

    Raises MucudnnError if the file cannot be written, and ArgumentTypeError if `plan` is not a Plan or `path`
    is not a path.
    """
    if not isinstance(plan, Plan):
        raise ArgumentTypeError(f"plan is {shown(plan)}, not a Plan")
    write_lines(path_of(path, "plan"), [str(plan)], "the plan")


def parse_plan_text(text: str) -> Plan:
    """Parse the text of a plan. Raises ValueError with the line, and NewerFileError for a newer version."""
    try:
        return Plan.parse(text)
    except NewerVersionError as error:
        raise NewerFileError(str(error)) from None


def _list_parts(configuration: Configuration) -> list[tuple[int, str, float, int]]:
    """Return the size, algorithm, milliseconds and workspace of each part."""
    return [(p.size, p.algorithm, p.time_ms, p.workspace) for p in configuration.parts]


def _list_groups(groups: ChannelGroups) -> list[tuple[int, list[tuple[int, str, float, int]]]]:
    sign = -1 if groups.of_inputs else 1  # in the bindings, input channels are below 0
    return [(sign * group.channels, _list_parts(group.configuration)) for group in groups.parts]


def _make_groups(groups: list[tuple[int, list[tuple[int, str, float, int]]]]) -> ChannelGroups:
    return ChannelGroups(
        tuple(
            ChannelGroup(abs(channels), _make_configuration(parts), channels < 0)
            for channels, parts in groups
        )
    )


def _make_configuration(parts: Sequence[tuple[int, str, float, int]]) -> Configuration:
    """Return the configuration of parts that `_list_parts` lists. Raises ValueError."""
    return Configuration(tuple(MicroConfiguration(*part) for part in parts))

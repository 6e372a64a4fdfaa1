"""Plan files: what was decided for each kernel, in the text form that the C++ side reads and writes too."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

from mucudnn._native import NewerVersionError, Problem, format_plan, parse_plan
from mucudnn.errors import ArgumentTypeError, MucudnnError, NewerFileError, shown
from mucudnn.output import write_lines
from mucudnn.solver import Configuration, MicroConfiguration

AnyPath = str | os.PathLike[str]


@dataclass(frozen=True)
class PlanKernel:
    """One kernel's choice, and the desirable set that it was chosen from.

    `tiles` divide each sample along its height or depth, where that is faster within the limit; then the
    functions for Python run them instead; `mucudnn run` follows the choice, and `mucudnn optimize`, which
    decides for it, plans none. Their `micro_batch` are steps, the times those of one sample.
    """

    problem: Problem
    pass_: str
    count: int
    chosen: Configuration
    desirable: tuple[Configuration, ...]
    tiles: Configuration | None = None


@dataclass(frozen=True)
class Plan:
    """The choices for a network, with the identity of the machine they were measured on in the header."""

    header: dict[str, str] = field(default_factory=dict)
    kernels: tuple[PlanKernel, ...] = ()

    def find(self, problem: Problem, pass_: str) -> PlanKernel | None:
        """The kernel, or None where the plan does not have it."""
        return next((k for k in self.kernels if (k.problem, k.pass_) == (problem, pass_)), None)

    @property
    def digest(self) -> str:
        """The same for equal plans alone."""
        # A cached_property has a lock before Python 3.12, which a child of fork() may find held.
        found: str | None = self.__dict__.get("_digest")
        if found is None:
            found = self.__dict__["_digest"] = hashlib.sha256(str(self).encode()).hexdigest()[:32]
        return found

    def __str__(self) -> str:
        return format_plan(
            self.header,
            [
                (
                    k.problem,
                    k.pass_,
                    k.count,
                    _parts(k.chosen),
                    [_parts(option) for option in k.desirable],
                    [] if k.tiles is None else _parts(k.tiles),
                )
                for k in self.kernels
            ],
        )

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """The plan of a text. Raises ValueError naming the line."""
        header, kernels = parse_plan(text)
        return cls(
            header,
            tuple(
                PlanKernel(
                    problem,
                    pass_,
                    count,
                    _configuration(chosen),
                    tuple(map(_configuration, desirable)),
                    _configuration(tiles) if tiles else None,
                )
                for problem, pass_, count, chosen, desirable, tiles in kernels
                if chosen  # a journal's may have candidates alone
            ),
        )


def write_plan(plan: Plan, path: AnyPath) -> None:
    """Write the file whole or not at all.

    Raises MucudnnError; ArgumentTypeError for what is no plan or no path.
    """
    if not isinstance(plan, Plan):
        raise ArgumentTypeError(f"plan is {shown(plan)}, not a Plan")
    write_lines(path_of(path), [str(plan)], "the plan")


def read_plan(path: AnyPath) -> Plan:
    """Read the plan that a file holds.

    Raises MucudnnError naming the file and line; NewerFileError for a newer version's plan; ArgumentTypeError
    for what is no path.
    """
    path = path_of(path)
    try:
        return Plan.parse(path.read_text("utf-8"))
    except OSError as error:
        raise MucudnnError(f"the plan {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MucudnnError(f"{path} is not a plan: it is not text") from None
    except NewerVersionError as error:
        raise NewerFileError(f"{path}: {error}") from None
    except ValueError as error:
        raise MucudnnError(f"{path}: {error}") from None


def path_of(path: AnyPath) -> Path:
    """Return the Path of what may be text or a path of any library. Raises ArgumentTypeError."""
    try:
        return Path(path)
    except Exception:  # the error of another library's __fspath__ as well
        raise ArgumentTypeError(f"path is {shown(path)}, not the path of a plan") from None


def _parts(configuration: Configuration) -> list[tuple[int, str, float, int]]:
    return [(p.micro_batch, p.algorithm, p.time_ms, p.workspace) for p in configuration.parts]


def _configuration(parts: list[tuple[int, str, float, int]]) -> Configuration:
    return Configuration(tuple(MicroConfiguration(*part) for part in parts))

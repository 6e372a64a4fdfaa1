"""Kernels, and reading them from a bundled network, a file of descriptors, or one descriptor."""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from mucudnn._native import Problem, parse_descriptor
from mucudnn.errors import UsageError, raised_here, shown
from mucudnn.input import MOST_BYTES_OF_LINES, expanded, read_text
from mucudnn.problems.descriptor import short_text

PASSES = ("forward", "backward_data", "backward_filter")
DEFAULT_BATCH = 64
_NETWORKS = Path(__file__).parent / "networks"


@dataclass(frozen=True)
class Kernel:
    """A problem in one pass: the key of measurements and decisions.

    A network gives a kernel its `name` and the `count` of its occurrences. They do not tell kernels apart.
    """

    problem: Problem
    pass_: str
    name: str = field(default="", compare=False)
    count: int = field(default=1, compare=False)

    @property
    def mini_batch(self) -> int:
        """The mini-batch of the problem."""
        return self.problem.mini_batch

    def at(self, mini_batch: int) -> "Kernel":
        """Return the kernel with another mini-batch."""
        return replace(self, problem=self.problem.replace(mini_batch=mini_batch))

    @property
    def label(self) -> str:
        """The name, or the short descriptor if the kernel has no name."""
        return self.name or short_text(self.problem)

    def __str__(self) -> str:
        return f"{self.label} {self.pass_}"


@dataclass(frozen=True)
class Flags:
    """The values of the command line's flags; None for a flag that was not given."""

    batch: int | None = None
    dtype: str | None = None
    layout: str | None = None
    math: str | None = None


def bundled_networks() -> list[str]:
    """Return the names of the networks that come with the package, sorted."""
    return sorted(path.stem for path in _NETWORKS.glob("*.txt"))


def read_kernels(source: str, flags: Flags, passes: Sequence[str]) -> list[Kernel]:
    """Return the kernels of a bundled network, a file or a descriptor, in these passes.

    Identical kernels become one with their count. A flag overrides the descriptor; the default applies where
    neither gives a value. A fused convolution has a kernel in the pass forward only.
    Raises UsageError if the source cannot be read or has no kernel; for a file the error names the line.
    """
    merged: dict[Kernel, Kernel] = {}
    for problem, name, count in _read_lines(source, flags):
        for pass_ in passes:
            if problem.epilogue and pass_ != "forward":
                continue
            kernel = Kernel(problem, pass_, name, 0)
            first = merged.setdefault(kernel, kernel)
            merged[kernel] = replace(first, count=first.count + count)
    if not merged:
        raise UsageError(f"{source} has no descriptor with a kernel in the pass {', '.join(passes)}")
    return list(merged.values())


def _read_lines(source: str, flags: Flags) -> Iterable[tuple[Problem, str, int]]:
    if source in bundled_networks():
        return _read_lines_of((_NETWORKS / f"{source}.txt").read_text("utf-8"), source, flags)
    if source.startswith("~"):
        source = expanded(source)
    if _is_file(source):
        try:
            text = read_text(Path(source), "utf-8-sig", most=MOST_BYTES_OF_LINES)
            return _read_lines_of(text, source, flags)
        except raised_here(OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{source} cannot be read as a list of descriptors: {error}") from None
    if not source.isprintable():
        raise UsageError(f"{shown(source)} is not text: give a network, a file or a descriptor")
    if re.search(r"[io]c-?\d|[ik][dh]-?\d", source):
        try:
            return [_read_descriptor(source, flags)]
        except ValueError as error:
            raise UsageError(f"'{source}': {error}") from None
    raise UsageError(_explain_unknown(source))


def _is_file(source: str) -> bool:
    try:
        return Path(source).is_file()
    except raised_here(OSError):  # such as a name that is too long: it is a descriptor then, or a mistake
        return False


def _read_lines_of(text: str, source: str, flags: Flags) -> list[tuple[Problem, str, int]]:
    read = []
    for number, line in enumerate(text.splitlines(), 1):
        descriptor = line.strip()
        if not descriptor or descriptor.startswith("#"):
            continue
        try:
            read.append(_read_descriptor(descriptor, flags))
        except ValueError as error:
            raise UsageError(f"{source}, line {number}: {error}") from None
    return read


def _read_descriptor(text: str, flags: Flags) -> tuple[Problem, str, int]:
    problem, name, count = parse_descriptor(
        text,
        mini_batch=DEFAULT_BATCH if flags.batch is None else flags.batch,
        data_type=flags.dtype or "f32",
        layout=flags.layout or "nchw",
        math=flags.math or "default",
    )
    given = problem.replace(
        mini_batch=flags.batch, data_type=flags.dtype, layout=flags.layout, math=flags.math
    )
    return given, name, count


def _explain_unknown(source: str) -> str:
    if source and len(source) < 256 and Path(source).exists():
        kind = "a folder" if Path(source).is_dir() else "a device or a pipe"
        return f"'{source}' is {kind}: give a network, a file or a descriptor"
    if Path(source).suffix or Path(source).name != source:
        return f"there is no file '{source}'"
    names = bundled_networks()
    near = difflib.get_close_matches(source.lower(), names, n=2, cutoff=0.5)
    hint = f": did you mean {' or '.join(near)}?" if near else "."
    return (
        f"'{source}' is not a network, a file or a descriptor{hint} "
        f"The networks are {', '.join(names)}; a descriptor looks like mb64_ic64ih27_oc192_kh5_ph2"
    )

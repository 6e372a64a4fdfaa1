"""The networks that commands read: bundled ones, files, and single descriptors.

A bundled network is built with all of its layers, or it is a list of convolutions without a training step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mucudnn._native import Problem, parse_descriptor
from mucudnn.errors import UsageError, raised_here, shown, suggestion
from mucudnn.forks import no_fork
from mucudnn.input import MOST_BYTES_OF_LINES, expanded, read_text
from mucudnn.problems.kernels import DEFAULT_BATCH, Kernel, merge_kernels

if TYPE_CHECKING:
    from mucudnn.problems.network import Network

TRAINABLE = (
    "alexnet", "alexnet-2014", "convnext", "googlenet", "googlenet-2014", "overfeat", "overfeat-2014",
    "resnet18", "resnet50", "unet3d", "vgg16", "vgg16-2014",
)  # fmt: skip
"""The networks with all of their layers, which `mucudnn.problems.bundled` reads."""

_LISTS = Path(__file__).parent / "networks"


@dataclass(frozen=True)
class Flags:
    """The values of the command line's flags; None for a flag that is not set."""

    batch: int | None = None
    dtype: str | None = None
    layout: str | None = None
    math: str | None = None


def bundled_networks() -> list[str]:
    """Return the names of the networks that come with the package, sorted."""
    return sorted([*TRAINABLE, *(path.stem for path in _LISTS.glob("*.txt"))])


def read_network(source: str, flags: Flags) -> Network:
    """Return the training step of a bundled network or of a network file.

    A file with only forward steps gets its backward steps. Batch, data type and layout are for bundled
    networks; a file has its own. The math mode is for both. Raises UsageError, MucudnnError.
    """
    network = _read_network(source, flags)
    return network if flags.math is None else network.with_math(flags.math)


def _read_network(source: str, flags: Flags) -> Network:
    with no_fork:
        from mucudnn.problems.bundled import training_step
        from mucudnn.problems.network import Network

    if source in TRAINABLE:
        return training_step(
            source, flags.batch or DEFAULT_BATCH, flags.dtype or "f32", flags.layout or "nchw"
        )
    if source in bundled_networks():
        raise UsageError(
            f"'{source}' is a list of convolutions without the tensors of a training step: give "
            f"{', '.join(TRAINABLE)}, a model, or a network file"
        )
    if not Path(source).is_file():
        raise UsageError(_explain_unknown(source))
    for flag, value in (("--batch", flags.batch), ("--dtype", flags.dtype), ("--layout", flags.layout)):
        if value is not None:
            raise UsageError(f"{flag} is for bundled networks: the network of {source} has its own")
    network = Network.read(source)
    return network if network.turn < len(network.steps) else network.with_backward()


def read_kernels(source: str, flags: Flags, passes: Sequence[str]) -> list[Kernel]:
    """Return the kernels of a bundled network, a file or a descriptor, in these passes.

    Identical kernels are merged. A flag overrides the descriptor; a default applies if neither has a value. A
    fused convolution has a kernel in the forward pass only, and a network has none for a gradient that its
    training does not need.
    Raises UsageError if the source cannot be read or has no kernel; for a file the error names the line.
    """
    if source in TRAINABLE:
        return [kernel for kernel in read_network(source, flags).kernels() if kernel.pass_ in passes]
    kernels = merge_kernels(
        Kernel(problem, pass_, name, count)
        for problem, name, count in _read_lines(source, flags)
        for pass_ in passes
        if pass_ == "forward" or not problem.epilogue
    )
    if not kernels:
        raise UsageError(f"{source} has no descriptor with a kernel in the pass {', '.join(passes)}")
    return kernels


def _read_lines(source: str, flags: Flags) -> Iterable[tuple[Problem, str, int]]:
    if source in bundled_networks():
        return _read_lines_of((_LISTS / f"{source}.txt").read_text("utf-8"), source, flags)
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
    if is_descriptor(source):
        try:
            return [_read_descriptor(source, flags)]
        except ValueError as error:
            raise UsageError(f"'{source}': {error}") from None
    raise UsageError(_explain_unknown(source))


def is_descriptor(source: str) -> bool:
    """Return whether a text looks like a descriptor, even if it has an error."""
    return re.search(r"[io]c-?\d|[ik][dh]-?\d", source) is not None


def _is_file(source: str) -> bool:
    try:
        return Path(source).is_file()
    except raised_here(OSError):  # such as for a name that is too long, which may be a descriptor
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
    problem = problem.replace(
        mini_batch=flags.batch, data_type=flags.dtype, layout=flags.layout, math=flags.math
    )
    return problem, name, count


def _explain_unknown(source: str) -> str:
    if source and len(source) < 256 and Path(source).exists():
        kind = "a folder" if Path(source).is_dir() else "a device or a pipe"
        return f"'{source}' is {kind}: give a network, a file or a descriptor"
    if Path(source).suffix or Path(source).name != source:
        return f"there is no file '{source}'"
    names = bundled_networks()
    return (
        f"'{source}' is not a network, a file or a descriptor{suggestion(source, names)} "
        f"The networks are {', '.join(names)}, and with torchvision or timm theirs; a descriptor looks like "
        "mb64_ic64ih27_oc192_kh5_ph2"
    )

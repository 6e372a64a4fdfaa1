"""The plan of a model that several devices share one sample of: numbers and text, without PyTorch."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mucudnn.errors import NewerFileError, shown
from mucudnn.input import read_document
from mucudnn.output import write_lines

_KIND, _VERSION = "mucudnn spatial plan", 2


@dataclass(frozen=True)
class SpatialStage:
    """A place to gather: the layer before it, and the dimensions of the mesh that still divide the tensor."""

    before: str
    divided: tuple[str, ...]


@dataclass(frozen=True)
class SpatialLayer:
    """One convolution: its place, `divided` or `whole`, and its costs for a rank in one step.

    `exchange_ms`, `halo_bytes` and `others_ms`, the time of other operators, hold up to the next convolution.
    `ranks` is the number of ranks that share a sample.
    """

    name: str
    place: str
    time_ms: float
    exchange_ms: float
    halo_bytes: int
    others_ms: float = 0.0
    ranks: int = 0


@dataclass(frozen=True)
class SpatialCandidate:
    """A mesh with the best places to gather: milliseconds of a step and bytes on a rank."""

    mesh: dict[str, int]
    gather_before: str | None
    time_ms: float
    memory: int
    fits: bool
    stages: tuple[SpatialStage, ...] = ()


@dataclass(frozen=True)
class SpatialPlan:
    """The chosen mesh, the axes that it divides, and the layers before which the tensor is gathered.

    `stages` are these layers in their order. `gather_before` is the one before which the tensor becomes
    whole, None if it stays divided to the end. Times are measured for the convolutions
    and modelled for the link; `notes` say so with their constants.
    """

    mesh: dict[str, int]
    axes: dict[int, str]
    gather_before: str | None
    time_ms: float
    memory: int
    memory_limit: int | None
    layers: tuple[SpatialLayer, ...]
    candidates: tuple[SpatialCandidate, ...]
    notes: tuple[str, ...]
    stages: tuple[SpatialStage, ...] = ()

    def write(self, path: str | Path) -> None:
        """Write the plan to a file, which `mucudnn plan show` prints. Raises MucudnnError."""
        text = json.dumps({"kind": _KIND, "version": _VERSION, **asdict(self)}, indent=1)
        write_lines(Path(path), [text, "\n"], "the spatial plan")


def is_spatial(text: str) -> bool:
    """Return whether the text of a file looks like a spatial plan."""
    return _KIND in text[:200]


def read_spatial_plan(path: str | Path) -> SpatialPlan:
    """Read a plan from a file. Raises MucudnnError, and NewerFileError for the plan of a newer version."""
    return read_document(path, "spatial plan", parse_spatial_plan)


def parse_spatial_plan(text: str) -> SpatialPlan:
    """Parse the text of a plan. Raises ValueError, and NewerFileError for the plan of a newer version."""
    try:
        found = json.loads(text)
        if found["kind"] != _KIND:
            raise ValueError(f"its kind is {shown(found['kind'])}")
        if found["version"] > _VERSION:
            raise NewerFileError("a newer version of mucudnn wrote it")
        return SpatialPlan(
            {str(name): int(size) for name, size in found["mesh"].items()},
            {int(axis): str(name) for axis, name in found["axes"].items()},
            found["gather_before"],
            float(found["time_ms"]),
            int(found["memory"]),
            found["memory_limit"],
            tuple(SpatialLayer(**layer) for layer in found["layers"]),
            tuple(_read_candidate(candidate) for candidate in found["candidates"]),
            tuple(map(str, found["notes"])),
            _read_stages(found),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"this is no spatial plan that can be read: {error}") from None


def _read_candidate(found: dict[str, Any]) -> SpatialCandidate:
    return SpatialCandidate(**{**found, "stages": _read_stages(found)})


def _read_stages(found: dict[str, Any]) -> tuple[SpatialStage, ...]:
    """Return the places to gather. A plan of version 1 has at most one."""
    if "stages" not in found:
        before = found["gather_before"]
        return () if before is None else (SpatialStage(before, ()),)
    return tuple(SpatialStage(stage["before"], tuple(stage["divided"])) for stage in found["stages"])

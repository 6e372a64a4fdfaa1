"""The plan of a model that several devices share one sample of: numbers and text, without PyTorch."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mucudnn.errors import MucudnnError, NewerFileError
from mucudnn.output import write_lines

_KIND, _VERSION = "mucudnn spatial plan", 1


@dataclass(frozen=True)
class SpatialLayer:
    """One convolution: its place, `divided` or `whole`, and its costs for a rank in one step."""

    name: str
    place: str
    time_ms: float
    exchange_ms: float
    halo_bytes: int


@dataclass(frozen=True)
class SpatialCandidate:
    """A mesh with the best place to gather: milliseconds of a step and bytes on a rank."""

    mesh: dict[str, int]
    gather_before: str | None
    time_ms: float
    memory: int
    fits: bool


@dataclass(frozen=True)
class SpatialPlan:
    """The chosen mesh, the axes that it divides, and the layer before which the tensor is gathered.

    `gather_before` is None if the tensor stays divided to the end. Times are measured for the convolutions
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

    def write(self, path: str | Path) -> None:
        """Write the plan to a file, which `mucudnn plan show` prints. Raises MucudnnError."""
        text = json.dumps({"kind": _KIND, "version": _VERSION, **asdict(self)}, indent=1)
        write_lines(Path(path), [text, "\n"], "the spatial plan")


def is_spatial(path: Path) -> bool:
    """Return whether a file looks like a spatial plan; False if it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            return _KIND in file.read(200)
    except (OSError, UnicodeDecodeError):
        return False


def read_spatial_plan(path: str | Path) -> SpatialPlan:
    """Read a plan from a file. Raises MucudnnError, and NewerFileError for the plan of a newer version."""
    try:
        found = json.loads(Path(path).read_text("utf-8"))
        if found["kind"] != _KIND:
            raise MucudnnError(f"{path} is no spatial plan")
        if found["version"] > _VERSION:
            raise NewerFileError(f"{path} was written by a newer version of mucudnn")
        return SpatialPlan(
            {str(name): int(size) for name, size in found["mesh"].items()},
            {int(axis): str(name) for axis, name in found["axes"].items()},
            found["gather_before"],
            float(found["time_ms"]),
            int(found["memory"]),
            found["memory_limit"],
            tuple(SpatialLayer(**layer) for layer in found["layers"]),
            tuple(SpatialCandidate(**candidate) for candidate in found["candidates"]),
            tuple(map(str, found["notes"])),
        )
    except OSError as error:
        raise MucudnnError(f"the spatial plan {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MucudnnError(f"{path} is no spatial plan that can be read: {error}") from None

"""The plan by which several devices share each sample of a model: numbers and text, without PyTorch."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from mucudnn.errors import shown
from mucudnn.input import parse_json, refuse_newer
from mucudnn.output.files import write_lines

_KIND, _VERSION = "mucudnn spatial plan", 1

T = TypeVar("T", bound="SpatialStage | SpatialLayer | SpatialCandidate | SpatialPlan")


@dataclass(frozen=True)
class SpatialStage:
    """A place in a model where ranks gather the parts of a tensor, or divide it again.

    `before` names the layer that follows. `divided` are the dimensions of the mesh that divide the inputs of
    layers from there on.
    """

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
    others_ms: float
    ranks: int


@dataclass(frozen=True)
class SpatialCandidate:
    """A mesh: milliseconds of a step and bytes on a rank with its best places to gather and divide again."""

    mesh: dict[str, int]
    gather_before: str | None
    time_ms: float
    memory: int
    fits: bool
    stages: tuple[SpatialStage, ...]


@dataclass(frozen=True)
class SpatialPlan:
    """The chosen mesh, the axes that it divides, and the layers before which tensors are gathered or divided.

    `stages` are these layers in their order. `gather_before` is the first layer before which the tensor
    becomes whole, None if there is none. Times are measured for the convolutions and modelled for the
    link; `notes` say so, with the model's constants.
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
    stages: tuple[SpatialStage, ...]

    def __str__(self) -> str:
        """Return the plan as JSON, which `parse_spatial_plan` reads."""
        return json.dumps({"kind": _KIND, "version": _VERSION, **asdict(self)}, indent=1)

    def write(self, path: str | Path) -> None:
        """Write the plan to a file, which `mucudnn.read_plan` reads. Raises MucudnnError."""
        write_lines(Path(path), [str(self), "\n"], "the spatial plan")


def parse_spatial_plan(text: str) -> SpatialPlan:
    """Parse the text of a plan. Raises ValueError, and NewerFileError for the plan of a newer version."""
    try:
        content = _object(parse_json(text))
        if (kind := content.pop("kind", None)) != _KIND:
            raise ValueError(f"its kind is {shown(kind)}")
        refuse_newer("spatial plan", _whole(content.pop("version", None)), _VERSION)
        return _read(SpatialPlan, content)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"this is not a readable spatial plan: {error}") from None


def _read(kind: type[T], content: Any) -> T:
    """Make a dataclass of a JSON object. Raises ValueError for missing, unknown or mistyped fields."""
    values, known = _object(content), {field.name: field for field in fields(kind)}
    for name in values:
        if name not in known:
            raise ValueError(f"there is nothing named {shown(name)} in it")
    for name in known:
        if name not in values:
            raise ValueError(f"it has no {name}")
    return kind(**{name: _READERS[known[name].type](value) for name, value in values.items()})


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{shown(value)} is not printable text")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or math.isnan(value):
        raise ValueError(f"{shown(value)} is not a number")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{shown(value)} is not a whole number from 0 to 2^63 - 1")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{shown(value)} is not a list")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{shown(value)} is not a JSON object")
    return dict(value)


# For each type of field, the function that converts a JSON value to it, or raises ValueError.
_READERS: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    float: _number,
    int: _whole,
    bool: _flag,
    str | None: lambda value: None if value is None else _text(value),
    int | None: lambda value: None if value is None else _whole(value),
    dict[str, int]: lambda value: {_text(name): _whole(size) for name, size in _object(value).items()},
    dict[int, str]: lambda value: {int(_text(axis)): _text(name) for axis, name in _object(value).items()},
    tuple[str, ...]: lambda value: tuple(map(_text, _list(value))),
    tuple[SpatialStage, ...]: lambda value: tuple(_read(SpatialStage, entry) for entry in _list(value)),
    tuple[SpatialLayer, ...]: lambda value: tuple(_read(SpatialLayer, entry) for entry in _list(value)),
    tuple[SpatialCandidate, ...]: lambda value: tuple(
        _read(SpatialCandidate, entry) for entry in _list(value)
    ),
}

"""The plan by which several devices share each sample of a model: numbers and text, without PyTorch."""

from dataclasses import dataclass

from mucudnn.codec import Count, Document


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
    halo_bytes: Count
    others_ms: float
    ranks: Count


@dataclass(frozen=True)
class SpatialCandidate:
    """A mesh: milliseconds of a step and bytes on a rank with its best places to gather and divide again."""

    mesh: dict[str, Count]
    gather_before: str | None
    time_ms: float
    memory: Count
    fits: bool
    stages: tuple[SpatialStage, ...]


@dataclass(frozen=True)
class SpatialPlan(Document, kind="spatial plan", version=1):
    """The chosen mesh, the axes that it divides, and the layers before which tensors are gathered or divided.

    `stages` are these layers in their order. `gather_before` is the first layer before which the tensor
    becomes whole, None if there is none. Times are measured for the convolutions and modelled for the
    link; `notes` say so, with the model's constants.
    """

    mesh: dict[str, Count]
    axes: dict[int, str]
    gather_before: str | None
    time_ms: float
    memory: Count
    memory_limit: Count | None
    layers: tuple[SpatialLayer, ...]
    candidates: tuple[SpatialCandidate, ...]
    notes: tuple[str, ...]
    stages: tuple[SpatialStage, ...]

"""Reading a plan of any kind: of convolutions, of a training step's memory, or of a spatial division."""

from typing import TYPE_CHECKING, TypeAlias

from mucudnn.forks import no_fork
from mucudnn.input import AnyPath, read_document
from mucudnn.plans.plan import Plan, parse_plan_text

if TYPE_CHECKING:
    from mucudnn.plans.devices.spatial_plan import SpatialPlan
    from mucudnn.plans.memory.plan import MemoryPlan

AnyPlan: TypeAlias = "Plan | MemoryPlan | SpatialPlan"


def read_plan(path: AnyPath) -> AnyPlan:
    """Read a plan of any kind from a file: a Plan, a MemoryPlan or a SpatialPlan.

    Raises MucudnnError with the file and line that cannot be read, NewerFileError for the plan of a newer
    version, and ArgumentTypeError if `path` is not a path.
    """
    return read_document(path, "plan", _parse)


def _parse(text: str) -> AnyPlan:
    if not text.startswith("{"):
        return parse_plan_text(text)
    with no_fork:
        from mucudnn.codec import kind_of, parse_json
        from mucudnn.plans.devices.spatial_plan import SpatialPlan
        from mucudnn.plans.memory.plan import MemoryPlan
    is_spatial = kind_of(parse_json(text)) == "mucudnn spatial plan"
    return SpatialPlan.parse(text) if is_spatial else MemoryPlan.parse(text)

"""Reading a plan of any kind: of convolutions, of memory, of a spatial division, or of tiles."""

from typing import TYPE_CHECKING, Any, TypeAlias

from mucudnn.forks import no_fork
from mucudnn.input import AnyPath, read_document
from mucudnn.plans.plan import Plan, parse_plan_text

if TYPE_CHECKING:
    from mucudnn.plans.devices.spatial_plan import SpatialPlan
    from mucudnn.plans.memory.plan import MemoryPlan
    from mucudnn.plans.stream_plan import StreamPlan

AnyPlan: TypeAlias = "Plan | MemoryPlan | SpatialPlan | StreamPlan"


def read_plan(path: AnyPath) -> AnyPlan:
    """Read a plan of any kind from a file: a Plan, a MemoryPlan, a SpatialPlan or a StreamPlan.

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
        from mucudnn.plans.stream_plan import StreamPlan
    kinds: dict[Any, type[SpatialPlan | StreamPlan]] = {
        "mucudnn spatial plan": SpatialPlan,
        "mucudnn stream plan": StreamPlan,
    }
    return kinds.get(kind_of(parse_json(text)), MemoryPlan).parse(text)

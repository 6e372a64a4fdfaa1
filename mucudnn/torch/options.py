"""The options that the three passes of a convolution share, in values that PyTorch's operators take."""

from collections.abc import Sequence
from typing import NamedTuple

from mucudnn.arrays.dispatch import PlanOrPath, known_plan
from mucudnn.errors import UsageError
from mucudnn.plans.plan import Plan

Ints = Sequence[int]
SCHEMA = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str channels_last, "
    "str? workspace, str? plan, bool fallback"
)
_HANDLE = "plan:"
_plans: dict[str, Plan] = {}  # by their handles, which compiled functions keep


class Options(NamedTuple):
    """The options of every pass; sizes count one for each spatial dimension."""

    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int
    channels_last: str  # which of "x", "w" and "y" are written channels last; their axes stay (N, C, ...)
    workspace: str | None
    plan: str | None
    fallback: bool  # to PyTorch's own, with a warning, rather than raise; and from the plan to the workspace


def handle_of(plan: PlanOrPath | None) -> str | None:
    """Return a name that the operators take for a plan; a path is one already. Raises MucudnnError."""
    if plan is None or isinstance(plan, str):
        return plan
    known = known_plan(plan)
    handle = f"{_HANDLE}{known.digest}"
    _plans.setdefault(handle, known)
    return handle


def plan_of(handle: str | None) -> PlanOrPath | None:
    """Return the plan of a handle, or the path that it is. Raises UsageError."""
    if handle is None:
        return None
    found = _plans.get(handle)
    if found is None and handle.startswith(_HANDLE):
        raise UsageError(
            f"this process does not know the plan with the digest {handle.removeprefix(_HANDLE)}, for which "
            "a function was traced or exported: do that again without a plan, or with the path of one"
        )
    return handle if found is None else found

"""The options that the three passes of a convolution share, as values that PyTorch's operators take."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from mucudnn.arrays.call import PlanOrPath, known_plan
from mucudnn.errors import UsageError
from mucudnn.plans.plan import Plan

Ints = Sequence[int]
SCHEMA = (
    "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str channels_last, "
    "str? workspace, str? plan, bool fallback, str? promise=None, bool constant_filter=False"
)
# The tensors of each pass, and the shape of a gradient.
TENSORS = {
    "forward": "Tensor x, Tensor w, Tensor? bias",
    "backward_data": "Tensor dy, Tensor w, SymInt[] shape",
    "backward_filter": "Tensor x, Tensor dy, SymInt[] shape",
}
_HANDLE = "plan:"
_plans: dict[str, Plan] = {}  # handle -> plan; never emptied, because compiled functions keep handles


class Options(NamedTuple):
    """The options of every pass; `stride`, `padding` and `dilation` have one number for each spatial axis."""

    stride: Ints
    padding: Ints
    dilation: Ints
    groups: int
    channels_last: str  # the letters of "x", "w", "y" that are written channels last; axes stay (N, C, ...)
    workspace: str | None  # the limit, as text
    plan: str | None  # a path or a handle (`handle_of`)
    # If True, a kernel that the plan lacks runs within `workspace`, and PyTorch computes a convolution that
    # fails, with a warning. If False, both are errors.
    fallback: bool
    promise: str | None = None  # the text of a Promise; None for that of the variables
    constant_filter: bool = False  # True if the forward pass may keep w in the algorithms' own form


def output_shape(
    x: Sequence[Any], w: Sequence[Any], stride: Ints, padding: Ints, dilation: Ints
) -> tuple[Any, ...]:
    """Return the shape of y, (N, K, ...), whose sizes may be symbols of a compiler."""
    axes = zip(x[2:], w[2:], stride, padding, dilation, strict=True)
    return x[0], w[0], *((i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in axes)


def handle_of(plan: PlanOrPath | None) -> str | None:
    """Return the text for a plan in an operator's arguments: its path, or a handle. Raises MucudnnError."""
    if plan is None or isinstance(plan, str):
        return plan
    known = known_plan(plan)
    handle = f"{_HANDLE}{known.digest}"
    _plans.setdefault(handle, known)
    return handle


def plan_of(handle: str | None) -> PlanOrPath | None:
    """Return the plan of a handle, or the handle itself if it is a path. Raises UsageError."""
    if handle is None:
        return None
    plan = _plans.get(handle)
    if plan is None and handle.startswith(_HANDLE):
        raise UsageError(
            f"this process does not know the plan with the digest {handle.removeprefix(_HANDLE)}, for which "
            "a function was traced or exported: do that again without a plan, or with the path of one"
        )
    return handle if plan is None else plan

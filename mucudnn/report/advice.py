"""Sentences: what more memory would buy, and how much less would do."""

from collections.abc import Iterator

from mucudnn.plans.decide import Limits
from mucudnn.plans.text import milliseconds
from mucudnn.report.curves import Curve, Point
from mucudnn.sizes import format_size

# Relative to the network's time, or to the limit; less is not worth a sentence.
_WORTH = 0.01


def advise(limits: Limits, kernels: int, even: Curve, divided: Curve) -> Iterator[str]:
    """For a total of the whole network (WD), or for a limit that each of so many kernels has (WR)."""
    if limits.total is not None:
        yield from _about(divided, limits.total, "", 1)
    elif limits.workspace is not None:
        yield from _about(even, kernels * limits.workspace, " for each kernel", kernels)
        yield from _division(even, divided, kernels * limits.workspace, kernels)
    else:
        enough = even.points[-1].workspace // kernels
        yield f"There is no limit: {format_size(enough)} for each kernel is all that would be used."


def next_step(curve: Curve, present: int) -> Point | None:
    """The point beyond `present` bytes that saves most for each byte more; None where none saves 1 %."""
    now = curve.at(present)
    if now is None:
        return None
    worth = [p for p in curve.points if p.workspace > present and now - p.time_ms >= _WORTH * now]
    return max(worth, key=lambda p: (now - p.time_ms) / (p.workspace - present), default=None)


def _about(curve: Curve, present: int, each: str, copies: int) -> Iterator[str]:
    """`copies` is how often a limit counts in the curve's workspace."""
    now = curve.at(present)
    assert now is not None  # the choices were made within it
    step = next_step(curve, present)
    if step is None:
        yield "More workspace would save less than 1 % of the time."
    else:
        more, saved = -(-(step.workspace - present) // copies), now - step.time_ms
        yield (
            f"{format_size(more)} more{each} would save {milliseconds(saved)} ms "
            f"of the {milliseconds(now)} ms predicted ({100 * saved / now:.0f} %)."
        )
    enough = curve.least_workspace(now)
    assert enough is not None
    if present - enough > _WORTH * present:
        yield (
            f"{format_size((present - enough) // copies)} less{each} would cost nothing: "
            f"{format_size(-(-enough // copies))} is enough for the same time."
        )


def _division(even: Curve, divided: Curve, present: int, kernels: int) -> Iterator[str]:
    """What dividing the total (WD) would make of it, where every kernel keeps a workspace of its own."""
    now = even.at(present)
    enough = None if now is None else divided.least_workspace(now)
    if kernels > 1 and enough is not None and enough < present:
        yield (
            f"Where all {kernels} kernels keep a workspace of their own, these limits add up to "
            f"{format_size(present)}; divided among them (WD), {format_size(enough)} is as fast."
        )

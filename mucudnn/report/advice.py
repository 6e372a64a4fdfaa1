"""Advice in sentences: the time that more memory would save, and the memory that would be enough."""

from collections.abc import Iterator

from mucudnn.output.text import milliseconds
from mucudnn.plans.decide import Limits
from mucudnn.report.curves import Curve, CurvePoint
from mucudnn.sizes import format_size

# The least gain that gets a sentence, relative to the network's time or to the limit.
_WORTH = 0.01


def advise(limits: Limits, kernels: int, even: Curve, divided: Curve) -> Iterator[str]:
    """Yield sentences of advice on a limit: the total (WD), or the limit of each of `kernels` kernels (WR).

    `even` and `divided` are the network's curves with the total split evenly and divided by need.
    """
    if limits.total is not None:
        yield from _advise_on(divided, limits.total, "", 1)
    elif limits.workspace is not None:
        yield from _advise_on(even, kernels * limits.workspace, " for each kernel", kernels)
        yield from _advise_division(even, divided, kernels * limits.workspace, kernels)
    else:
        enough = even.points[-1].workspace // kernels
        yield f"There is no limit: {format_size(enough)} for each kernel is all that would be used."


def next_step(curve: Curve, present: int) -> CurvePoint | None:
    """Return the point beyond `present` bytes that saves the most time per additional byte.

    Return None if no point saves 1 % of the time.
    """
    now = curve.at(present)
    if now is None:
        return None
    worth = [p for p in curve.points if p.workspace > present and now - p.time_ms >= _WORTH * now]
    return max(worth, key=lambda p: (now - p.time_ms) / (p.workspace - present), default=None)


def _advise_on(curve: Curve, present: int, each: str, copies: int) -> Iterator[str]:
    """Yield sentences about more and about less workspace than `present` bytes.

    The sentences give sizes for one limit, which the curve's workspace counts `copies` times.
    """
    now = curve.at(present)
    assert now is not None  # the decisions fit `present` bytes, so the curve has a time there
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


def _advise_division(even: Curve, divided: Curve, present: int, kernels: int) -> Iterator[str]:
    """Yield a sentence about the memory that workspace division (WD) would save.

    It applies to programs in which every kernel keeps a workspace of its own.
    """
    now = even.at(present)
    enough = None if now is None else divided.least_workspace(now)
    if kernels > 1 and enough is not None and enough < present:
        yield (
            f"Where all {kernels} kernels keep a workspace of their own, these limits add up to "
            f"{format_size(present)}; divided among them (WD), {format_size(enough)} is as fast."
        )

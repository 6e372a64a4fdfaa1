"""The arithmetic of divided axes: the owner of each row, and the rows that an operator reads for its outputs.

Rows are counted from 0 in the undivided tensor, and intervals are half-open. A window may begin before row 0
or end after the last row: the rows outside are padding, which the caller fills with a value.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from mucudnn.errors import UsageError


class Span(NamedTuple):
    """The rows from `lo` up to `hi`, without `hi`; empty if `hi` is not above `lo`."""

    lo: int
    hi: int

    @property
    def size(self) -> int:
        """The number of rows."""
        return max(self.hi - self.lo, 0)

    def meet(self, other: "Span") -> "Span":
        """Return the rows that both spans have; an empty span begins where a shared row would."""
        lo = max(self.lo, other.lo)
        return Span(lo, max(lo, min(self.hi, other.hi)))

    def nearest(self, size: int) -> "Span":
        """Return the rows that exist on an axis of this size, or else the existing row next to the span."""
        lo = min(max(self.lo, 0), size - 1)
        return Span(lo, max(min(self.hi, size), lo + 1))

    def moved(self, rows: int) -> "Span":
        """Return the span with both ends moved up by a number of rows."""
        return Span(self.lo + rows, self.hi + rows)


EMPTY = Span(0, 0)
Window = Callable[[Span], Span]  # outputs → the inputs that they are computed from


def parts(size: int, count: int) -> tuple[Span, ...]:
    """Return the rows of each of `count` owners of an axis; they equal the parts of `torch.chunk`.

    The last owners may have fewer rows than the others, or none.
    """
    step = -(-size // count)
    return tuple(Span(min(i * step, size), min((i + 1) * step, size)) for i in range(count))


def windows_of(outputs: Sequence[Span], window: Window) -> tuple[Span, ...]:
    """Return the window of each rank. A rank without outputs reads nothing."""
    return tuple(window(part) if part.size else EMPTY for part in outputs)


def reach(kernel: int, dilation: int) -> int:
    """Return the number of rows from the first tap of a filter to its last."""
    return dilation * (kernel - 1) + 1


def convolved_size(size: int, padding: tuple[int, int], stride: int, reach: int) -> int:
    """Return the outputs of a convolution along an axis with this padding at its beginning and end.

    The result is 0 or less if the padded axis is shorter than the filter.
    """
    return (size + sum(padding) - reach) // stride + 1


def pooled_size(size: int, padding: int, stride: int, reach: int, ceil_mode: bool) -> int:
    """Return the outputs of a pooling along an axis, with PyTorch's rule for `ceil_mode`.

    Under that rule no output begins after the last row, in the padding that follows it.
    """
    outputs = (size + 2 * padding - reach + (stride - 1 if ceil_mode else 0)) // stride + 1
    return outputs - 1 if ceil_mode and (outputs - 1) * stride >= size + padding else outputs


def transposed_size(size: int, padding: int, stride: int, reach: int, more: int) -> int:
    """Return the outputs of a transposed convolution along an axis, with `more` rows of output padding."""
    return (size - 1) * stride - 2 * padding + reach + more


def sliding(stride: int, padding: int, reach: int) -> Window:
    """Return the window of a convolution or pooling: output o reads `reach` rows from o·stride − padding."""
    return lambda o: Span(o.lo * stride - padding, (o.hi - 1) * stride - padding + reach)


def transposed(stride: int, padding: int, reach: int) -> Window:
    """Return the window of a transposed convolution, in which input i adds to `reach` outputs.

    These outputs begin at i·stride − padding. The transposed convolution of the window, without padding, has
    more outputs than the rank needs, so the caller crops it.
    """

    def window(o: Span) -> Span:
        first = min(-((reach - 1 - padding - o.lo) // stride), (o.lo + padding) // stride)
        last = max((o.hi - 1 + padding) // stride, -((reach - o.hi - padding) // stride))
        return Span(first, last + 1)

    return window


def adaptive(size: int, outputs: int) -> Window:
    """Return the window of an adaptive pooling of `size` rows to `outputs` rows."""
    return lambda o: Span(o.lo * size // outputs, -(-o.hi * size // outputs))


def tapped(taps: Sequence[Sequence[int]]) -> Window:
    """Return the window of an operator whose output o reads the rows `taps[o]`."""
    return lambda o: Span(min(min(t) for t in taps[o.lo : o.hi]), max(max(t) for t in taps[o.lo : o.hi]) + 1)


class Pieces(NamedTuple):
    """A window in five sections, each a number of rows: filled, received, own, received, filled.

    `own_lo` is the first own row within the rank's part. If the window has no own row, all rows that exist
    count as received before.
    """

    filled_before: int
    received_before: int
    own: int
    received_after: int
    filled_after: int
    own_lo: int


def pieces(window: Span, owners: Sequence[Span], index: int) -> Pieces:
    """Return the sections of a rank's window. `owners` are the parts of all ranks, `index` names the rank."""
    part = owners[index]
    real = window.meet(Span(0, owners[-1].hi))
    before, after = real.lo - window.lo, window.hi - real.hi
    if not real.size:  # nothing but padding
        return Pieces(window.size, 0, 0, 0, 0, 0)
    own = real.meet(part)
    if not own.size:
        return Pieces(before, real.size, 0, 0, after, 0)
    return Pieces(before, own.lo - real.lo, own.size, real.hi - own.hi, after, own.lo - part.lo)


def transfers(owners: Sequence[Span], windows: Sequence[Span], index: int) -> tuple[list[Span], list[Span]]:
    """Return the rows that a rank sends to each rank, and the rows that it receives from each.

    Both lists have, at the rank's own index, the rows that it keeps.
    """
    sent = [owners[index].meet(window) for window in windows]
    received = [windows[index].meet(part) for part in owners]
    return sent, received


def flattened(spans: Sequence[Span]) -> list[int]:
    """Return the ends of spans as numbers, which an operator of PyTorch takes."""
    return [end for span in spans for end in span]


def paired(ends: Sequence[int]) -> tuple[Span, ...]:
    """Return the spans of `flattened` numbers."""
    return tuple(Span(ends[i], ends[i + 1]) for i in range(0, len(ends), 2))


def factorisations(count: int, axes: int) -> list[tuple[int, ...]]:
    """Return all ways to write a number as a product of `axes` factors, in ascending order."""
    factors = [factor for factor in range(1, count + 1) if count % factor == 0]
    return [ways for ways in itertools.product(factors, repeat=axes) if math.prod(ways) == count]


def for_each_axis(value: Any, dims: int) -> tuple[Any, ...]:
    """Return a value for each spatial axis from a sequence, or from a single value for all of them."""
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(values) not in (1, dims):
        raise UsageError(f"{value} has {len(values)} sizes for {dims} spatial axes")
    return values * dims if len(values) == 1 else values


def with_rows(shape: Sequence[int], axis: int, rows: int) -> list[int]:
    """Return a shape with another number of rows on an axis."""
    return [*shape[:axis], rows, *shape[axis + 1 :]]


def product(numbers: Sequence[int]) -> int:
    """Return the product of numbers; 1 for none."""
    return math.prod(numbers)

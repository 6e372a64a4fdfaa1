"""The window arithmetic of divided axes equals brute force over single rows."""

import needs_torch  # noqa: F401
from hypothesis import given
from hypothesis import strategies as st
from needs_torch import torch

from mucudnn.torch.windows import spans as w
from mucudnn.torch.windows.spans import Span

sizes, counts = st.integers(1, 40), st.integers(1, 6)


@st.composite
def layers(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Return a length, a stride, a padding and a reach of which the filter fits the padded axis."""
    size, stride, padding = draw(sizes), draw(st.integers(1, 4)), draw(st.integers(0, 5))
    return size, stride, padding, draw(st.integers(1, size + 2 * padding))


@given(st.integers(0, 60), counts)
def test_parts_equal_those_of_torch_chunk(size: int, count: int) -> None:
    rows = [list(range(part.lo, part.hi)) for part in w.parts(size, count)]
    expected = [piece.tolist() for piece in torch.arange(size).chunk(count)] if size else []
    assert rows == expected + [[]] * (count - len(expected))


@given(layers(), counts)
def test_a_convolution_reads_exactly_its_window(layer: tuple[int, int, int, int], count: int) -> None:
    size, stride, padding, reach = layer
    outputs = w.convolved_size(size, (padding, padding), stride, reach)
    window = w.sliding(stride, padding, reach)
    for part in w.parts(outputs, count):
        if part.size:
            read = {o * stride - padding + tap for o in range(part.lo, part.hi) for tap in range(reach)}
            assert (window(part).lo, window(part).hi) == (min(read), max(read) + 1)


@given(layers(), counts, st.integers(0, 3))
def test_a_transposed_window_reaches_every_output(
    layer: tuple[int, int, int, int], count: int, more: int
) -> None:
    size, stride, padding, reach = layer
    outputs = w.transposed_size(size, padding, stride, reach, more)
    for part in w.parts(max(outputs, 0), count):
        if not part.size:
            continue
        window = w.transposed(stride, padding, reach)(part)
        for i in range(size):  # every input that adds to one of the outputs is read
            adds = range(i * stride - padding, i * stride - padding + reach)
            if any(part.lo <= o < part.hi for o in adds):
                assert window.lo <= i < window.hi
        assert window.lo * stride - padding <= part.lo
        assert (window.hi - 1) * stride - padding + reach >= part.hi


@given(st.integers(1, 30), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.booleans())
def test_a_pooling_has_the_outputs_of_pytorch(
    size: int, kernel: int, stride: int, padding: int, ceil_mode: bool
) -> None:
    padding = min(padding, kernel // 2)
    if size + 2 * padding < kernel:
        return
    y = torch.nn.functional.max_pool1d(torch.zeros(1, 1, size), kernel, stride, padding, ceil_mode=ceil_mode)
    assert w.pooled_size(size, padding, stride, kernel, ceil_mode) == y.size(2)


@given(sizes, sizes)
def test_an_adaptive_window_is_that_of_pytorch(size: int, outputs: int) -> None:
    weights = torch.nn.functional.adaptive_avg_pool1d(torch.eye(size, dtype=torch.float64)[:, None], outputs)
    for o in range(outputs):
        rows = weights[:, 0, o].nonzero().flatten().tolist()
        assert w.adaptive(size, outputs)(Span(o, o + 1)) == Span(rows[0], rows[-1] + 1)


@given(sizes, counts, st.data())
def test_rows_that_are_sent_are_those_that_are_received(size: int, count: int, data: st.DataObject) -> None:
    owners = w.parts(size, count)
    ends = st.integers(-5, size + 5)
    windows = [Span(*sorted((data.draw(ends), data.draw(ends)))) for _ in range(count)]
    transfers = [w.transfers(owners, windows, rank) for rank in range(count)]
    for rank in range(count):
        sent, received = transfers[rank]
        for peer in range(count):
            assert sent[peer].size == transfers[peer][1][rank].size
        rows = [row for span in received for row in range(span.lo, span.hi)]
        assert rows == [row for row in range(windows[rank].lo, windows[rank].hi) if 0 <= row < size]


@given(sizes, counts, st.data())
def test_the_sections_of_a_window_add_up_to_it(size: int, count: int, data: st.DataObject) -> None:
    owners, ends = w.parts(size, count), st.integers(-5, size + 5)
    window, rank = Span(*sorted((data.draw(ends), data.draw(ends)))), data.draw(st.integers(0, count - 1))
    sections = w.pieces(window, owners, rank)
    assert sum(sections[:5]) == window.size
    own = [row for row in range(window.lo, window.hi) if owners[rank].lo <= row < owners[rank].hi]
    assert sections.own == len(own)
    assert not own or owners[rank].lo + sections.own_lo == own[0]
    filled = [row for row in range(window.lo, window.hi) if not 0 <= row < size]
    assert sections.filled_before + sections.filled_after == len(filled)


@given(st.integers(1, 48), st.integers(1, 3))
def test_factorisations_are_all_products(count: int, axes: int) -> None:
    ways = w.factorisations(count, axes)
    assert len(set(ways)) == len(ways)
    assert all(w.product(way) == count for way in ways)

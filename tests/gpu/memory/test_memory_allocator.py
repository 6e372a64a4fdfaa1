"""The simulated allocator takes the same segments as PyTorch's, and runs out of memory where that does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needs_torch import torch
from random_cases import examples
from unused_memory import limited_to, unused_stream

from mucudnn.plans.memory.allocator import FREE, Event, count_reserved, find_least

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_on_stand_in")]

MIB = 2**20
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, MIB),
    st.integers(MIB + 1, 12 * MIB),
    st.integers(9 * MIB, 40 * MIB),
    st.sampled_from([MIB, 8 * MIB, 10 * MIB, 64 * MIB]),
)


@st.composite
def sequences(draw: st.DrawFn) -> list[Event]:
    """Draw tensors that are allocated, and freed in any order."""
    events: list[Event] = []
    live: list[int] = []
    for number in range(draw(st.integers(1, 60))):
        if live and draw(st.booleans()):
            events.append((live.pop(draw(st.integers(0, len(live) - 1))), FREE))
        else:
            events.append((number, draw(SIZES)))
            live.append(number)
    return events


@settings(max_examples=examples(60))
@given(sequences(), st.integers(0, 100))
def test_pytorch_takes_as_much(events: list[Event], share: int) -> None:
    with unused_stream():
        before = torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        allocate(events)
        most = torch.cuda.max_memory_reserved() - before
    assert count_reserved(events) == most
    least = find_least(events)
    for limit in (least, least - 1, most * share // 100):
        with unused_stream(), limited_to(limit):
            try:
                allocate(events)
                fits = True
            except torch.OutOfMemoryError:
                fits = False
        assert fits is (count_reserved(events, limit) <= limit)
    assert count_reserved(events, least) <= least <= most


def allocate(events: list[Event]) -> None:
    """Allocate and free tensors on the device."""
    tensors = {}
    for key, size in events:
        if size == FREE:
            del tensors[key]
        else:
            tensors[key] = torch.empty(size, dtype=torch.uint8, device="cuda")

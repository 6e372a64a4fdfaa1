"""Divisions along channels and mini-batch agree with a search through all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn.solver import (
    ChannelGroup,
    ChannelGroups,
    Configuration,
    MicroConfiguration,
    desirable_set,
    divide_channels,
)

TIE = 1e-12
MINI_BATCH = 3
WHOLE = MicroConfiguration(1, "A", 1.0, 10)


@st.composite
def measurements(draw: st.DrawFn) -> tuple[dict[int, list[MicroConfiguration]], int]:
    """Draw micro-configurations for some numbers of channels, and the channels to divide."""
    channels = draw(st.integers(1, 5))
    sizes = draw(st.sets(st.integers(1, 6), max_size=3))
    places = st.sets(st.tuples(st.integers(1, MINI_BATCH), st.sampled_from("AB")), max_size=3)
    return {
        size: [
            MicroConfiguration(batch, algorithm, draw(st.integers(0, 9)) * 0.1, draw(st.integers(0, 5)))
            for batch, algorithm in sorted(draw(places))
        ]
        for size in sizes
    }, channels


def multisets(items: Sequence[tuple[int, object]], total: int) -> Iterator[tuple[object, ...]]:
    """Yield every multiset of sized items whose sizes add to the total."""
    if total == 0:
        yield ()
    for index, (size, item) in enumerate(items):
        if size <= total:
            for rest in multisets(items[index:], total - size):
                yield (item, *rest)


def every_division(measured: dict[int, list[MicroConfiguration]], channels: int) -> list[tuple[int, float]]:
    """Return (workspace, time) of every choice of groups and of every division of each group's mini-batch."""
    groups: list[tuple[int, object]] = [
        (size, Configuration(parts))  # type: ignore[arg-type]
        for size, parts_of in measured.items()
        for parts in multisets([(m.micro_batch, m) for m in parts_of], MINI_BATCH)
    ]
    return [
        (max(c.workspace for c in choice), sum(c.time_ms for c in choice))  # type: ignore[attr-defined]
        for choice in multisets(groups, channels)
    ]


@given(measurements())
def test_the_desirable_set_over_both_directions_is_what_all_divisions_give(
    case: tuple[dict[int, list[MicroConfiguration]], int],
) -> None:
    measured, channels = case
    sets = {size: desirable_set(parts, MINI_BATCH) for size, parts in measured.items()}
    divisions = divide_channels(sets, channels)
    everything = every_division(measured, channels)
    expected: list[tuple[int, float]] = []
    for workspace in sorted({bytes_ for bytes_, _ in everything}):
        fastest = min(time for bytes_, time in everything if bytes_ <= workspace)
        if not expected or fastest < expected[-1][1] * (1 - TIE):
            expected.append((workspace, fastest))
    assert [division.workspace for division in divisions] == [workspace for workspace, _ in expected]
    assert [division.time_ms for division in divisions] == pytest.approx(
        [time for _, time in expected], rel=1e-9, abs=0
    )
    for division in divisions:
        assert division.channels == channels
        assert all(group.configuration in sets[group.channels] for group in division.parts)


def test_groups_name_their_slices_and_their_text() -> None:
    half = Configuration((MicroConfiguration(2, "A", 1.0, 5), MicroConfiguration(1, "B", 0.5, 7)))
    groups = ChannelGroups((ChannelGroup(32, half),) * 2)
    assert str(groups) == "2*32 (1*2 A + 1*1 B)"
    assert groups.groups == ((32, ((2, "A"), (1, "B"))),) * 2
    assert (groups.channels, groups.time_ms, groups.workspace, groups.slice_count) == (64, 3.0, 7, 2)


@pytest.mark.parametrize("channels", [0, -1])
def test_channels_below_one_are_refused(channels: int) -> None:
    with pytest.raises(ValueError, match=f"channels is {channels}, must be at least 1"):
        ChannelGroup(channels, Configuration((WHOLE,)))
    with pytest.raises(ValueError, match=f"channels is {channels}, must be at least 1"):
        divide_channels({}, channels)

"""A median lies on a side of a bound only if its interval does."""

from hypothesis import given
from hypothesis import strategies as st

from mucudnn.measuring.intervals import UNDECIDED, name_side

sides = st.lists(st.sampled_from([1.0, 3.0]), max_size=24)


@given(sides)
def test_a_side_is_named_if_nearly_all_values_lie_there(values: list[float]) -> None:
    side = name_side(values, 2.0)
    fewer = min(values.count(1.0), values.count(3.0))
    is_decided = len(values) > 2 and fewer <= allowed(len(values))
    assert side == (UNDECIDED if not is_decided else "above" if values.count(3.0) > fewer else "below")


def allowed(count: int) -> int:
    """Return how many of `count` values may differ, by the tables of the sign test at 5 %."""
    table = {6: 0, 9: 1, 12: 2, 15: 3, 17: 4, 20: 5, 23: 6}
    return max((few for least, few in table.items() if count >= least), default=0)

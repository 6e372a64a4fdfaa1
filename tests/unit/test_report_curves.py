from collections.abc import Mapping, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples

from mucudnn._native import parse_descriptor
from mucudnn.plans.decide import Limits
from mucudnn.problems.kernels import Kernel
from mucudnn.report.advice import advise, next_step
from mucudnn.report.curves import Curve, CurvePoint, divided_curve, even_curve
from mucudnn.solver import Configuration, MicroConfiguration
from mucudnn.solver.workspace.configuration import pareto_front

MiB = 2**20
Fronts = Mapping[Kernel, Sequence[Configuration]]


def kernel(number: int, count: int = 1) -> Kernel:
    problem, _, _ = parse_descriptor(f"mb4_ic{number + 1}ih5_oc4_kh3")
    return Kernel(problem, "forward", count=count)


def front(*points: tuple[int, float]) -> list[Configuration]:
    made = [Configuration((MicroConfiguration(4, f"A{i}", t, w),)) for i, (w, t) in enumerate(points)]
    return pareto_front(sorted(made, key=lambda c: (c.workspace, c.time_ms)))


def curve(*points: tuple[int, float]) -> Curve:
    return Curve(tuple(CurvePoint(*point) for point in points))


points = st.lists(st.tuples(st.integers(0, 50), st.floats(0.1, 100)), min_size=1, max_size=5)
networks = st.lists(st.tuples(st.integers(1, 3), points), min_size=1, max_size=4).map(
    lambda drawn: {kernel(i, count): front(*drawn_points) for i, (count, drawn_points) in enumerate(drawn)}
)


@given(networks, st.integers(0, 700))
def test_an_even_split_gives_each_kernel_its_fastest_within_the_same_bytes(
    fronts: Fronts, total: int
) -> None:
    each = total // sum(k.count for k in fronts)
    fitting = {k: [c.time_ms for c in cs if c.workspace <= each] for k, cs in fronts.items()}
    expected = sum(k.count * min(times) for k, times in fitting.items()) if all(fitting.values()) else None
    time_ms = even_curve(fronts).at(total)
    assert time_ms is None if expected is None else abs(time_ms - expected) < 1e-9 * expected


@settings(max_examples=examples(25))  # each example solves forty totals
@given(networks)
def test_a_division_by_need_is_never_slower_than_an_even_split(fronts: Fronts) -> None:
    even, divided = even_curve(fronts), divided_curve(fronts)
    for point in even.points:
        time_ms = divided.at(point.workspace)
        assert time_ms is not None
        assert time_ms <= point.time_ms * (1 + 1e-9)


@settings(max_examples=examples(25))  # each example solves forty totals
@given(networks)
def test_the_division_reaches_from_the_leanest_to_the_fastest(fronts: Fronts) -> None:
    points = divided_curve(fronts).points
    assert points[0].workspace == sum(k.count * cs[0].workspace for k, cs in fronts.items())
    fastest = sum(k.count * cs[-1].time_ms for k, cs in fronts.items())
    assert abs(points[-1].time_ms - fastest) < 1e-9 * fastest
    assert list(points) == sorted(points, key=lambda p: (p.workspace, -p.time_ms))


def test_a_kernel_with_nothing_to_run_leaves_no_curve() -> None:
    assert even_curve({kernel(0): front((0, 1)), kernel(1): []}).points == ()


def test_the_next_step_is_the_one_that_saves_most_for_its_bytes() -> None:
    steps = curve((0, 100), (10, 99.5), (20, 80), (1000, 10))
    assert next_step(steps, 0) == CurvePoint(20, 80)
    assert next_step(steps, 20) == CurvePoint(1000, 10)
    assert next_step(steps, 1000) is None


def test_the_advice_on_a_total_says_what_more_would_save_and_what_less_would_cost() -> None:
    divided = curve((0, 100), (20 * MiB, 80), (60 * MiB, 40))
    assert list(advise(Limits(total=30 * MiB), 3, curve((0, 100)), divided)) == [
        "30 MiB more would save 40.00 ms of the 80.00 ms predicted (50 %).",
        "10 MiB less would cost nothing: 20 MiB is enough for the same time.",
    ]
    assert list(advise(Limits(total=60 * MiB), 3, curve((0, 100)), divided)) == [
        "More workspace would save less than 1 % of the time."
    ]


def test_the_advice_on_a_limit_is_for_each_kernel_and_names_the_gain_of_dividing_a_total() -> None:
    even = curve((0, 100), (40 * MiB, 80), (80 * MiB, 40))
    divided = curve((0, 100), (20 * MiB, 80), (60 * MiB, 40))
    assert list(advise(Limits(workspace=12 * MiB), 4, even, divided)) == [
        "8 MiB more for each kernel would save 40.00 ms of the 80.00 ms predicted (50 %).",
        "2 MiB less for each kernel would cost nothing: 10 MiB is enough for the same time.",
        "Where all 4 kernels keep a workspace of their own, these limits add up to 48 MiB; "
        "divided among them (WD), 20 MiB is as fast.",
    ]


def test_without_limit_the_advice_says_what_would_be_used() -> None:
    even = curve((0, 100), (80 * MiB, 40))
    assert list(advise(Limits(), 4, even, even)) == [
        "There is no limit: 20 MiB for each kernel is all that would be used."
    ]

"""The bench of recognised convolutions reads the drop-in's log, and gives shapes that frameworks accept."""

import pytest

from bench.suites.drop_in.recognised import (
    NETWORKS,
    RECORDED,
    count_calls,
    options_of,
    read_convolutions,
    shapes_of,
)


@pytest.mark.parametrize(
    ("reasons", "counts"),
    [
        ("7 passed through (only recorded)", {RECORDED: 7}),
        ("7 passed through (a scaled pointwise operation)", {"a scaled pointwise operation": 7}),
        ("7 passed through (5 only recorded, 2 an operand of other sizes)",
         {RECORDED: 5, "an operand of other sizes": 2}),
        ("6 passed through (1 an intermediate tensor in memory, used twice or of another data type, 5 only "
         "recorded)",
         {"an intermediate tensor in memory, used twice or of another data type": 1, RECORDED: 5}),
    ],
)  # fmt: skip
def test_the_log_gives_the_number_of_calls_by_reason(reasons: str, counts: dict[str, int]) -> None:
    calls = sum(counts.values())
    log = f"mucudnn: calls are passed on\nmucudnn: 0 of {calls} convolutions divided, {reasons}\n"
    assert count_calls(log) == counts


def test_a_program_without_convolutions_has_no_calls() -> None:
    assert count_calls("mucudnn: calls are passed on\n") == {}


@pytest.mark.parametrize("network", NETWORKS)
def test_every_convolution_has_an_output_after_its_sizes_are_cut(network: str) -> None:
    for kernel in read_convolutions(network):
        (x, w), options = shapes_of(kernel), options_of(kernel)
        assert x[1] == w[1] * options["groups"]
        rows = zip(x[2:], w[2:], options["padding"], options["dilation"], strict=True)
        assert all(size + 2 * padding >= (k - 1) * dilation + 1 for size, k, padding, dilation in rows)

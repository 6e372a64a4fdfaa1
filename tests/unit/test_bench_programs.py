"""The bench of unmodified programs reads the drop-in's log, and accepts only runs that keep its promises."""

import pytest

from bench.suites.drop_in.client import make_operands
from bench.suites.drop_in.programs import (
    EVERY_FORM,
    make_record,
    read_problems,
    table_rows,
)
from mucudnn._native import parse_descriptor

TAIL = "; MUCUDNN_LOG=info for more\n"


@pytest.mark.parametrize("network", ["resnet50", "video_vae"])  # in two and in three dimensions
def test_a_client_gets_every_convolution_of_a_network_as_a_descriptor(network: str) -> None:
    for form in EVERY_FORM:
        for problem in read_problems(network, *form):
            assert (problem.data_type, problem.layout) == form
            assert max(problem.input) <= 32, "the sizes are cut"
            assert min(problem.output) > 0
            assert str(parse_descriptor(str(problem))[0]) == str(problem)
            assert [array.size for array in make_operands(problem)] == [
                problem.x_elements, problem.w_elements, problem.y_elements,
            ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("23 of 36 convolutions divided, 23 of them in tiles, 12 by a faster algorithm, workspace at most "
         "1.9 MiB",
         (23, 36, 12, "1.9 MiB")),
        ("4 of 4 convolutions divided, workspace at most 2 MiB", (0, 4, 0, "2 MiB")),
    ],
)  # fmt: skip
def test_the_log_gives_the_counts(line: str, counts: tuple[int, int, int, str]) -> None:
    record = make_record("a program", f"mucudnn: a warning\nmucudnn: {line}{TAIL}", 1e-6)
    details = record.details
    assert (record.value, details["calls"], details["faster"], details["workspace"]) == counts
    ((name, *_, difference),) = table_rows([record])
    assert (name, difference) == ("a program", "1e-06")


@pytest.mark.parametrize(
    ("workspace", "difference"), [("2.1 MiB", 0.0), ("2 MiB", 1e-3), ("2 MiB", float("nan"))]
)
def test_a_run_that_breaks_a_promise_is_no_figure(workspace: str, difference: float) -> None:
    line = f"mucudnn: 1 of 1 convolutions divided, workspace at most {workspace}{TAIL}"
    with pytest.raises(SystemExit):
        make_record("a program", line, difference)

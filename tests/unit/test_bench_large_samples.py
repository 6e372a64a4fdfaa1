"""The bench of large samples reads the drop-in's last line, and accepts only runs that keep its promises."""

import numpy as np
import pytest

from bench.suites.drop_in.large_samples import difference_of, make_record, table_rows

TAIL = "; MUCUDNN_LOG=info for more\n"


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


def test_the_difference_is_that_of_the_worst_result() -> None:
    expected = {"a": np.full(4, 2.0, np.float32), "b": np.ones(1, np.float32)}
    results = {"a": np.array([2, 2, 2, 3], np.float32), "b": expected["b"]}
    assert difference_of(results, expected) == pytest.approx(0.25)
    with pytest.raises(SystemExit):
        difference_of({}, expected)

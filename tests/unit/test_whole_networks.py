"""A session of bench.whole_networks measures what the file lacks, within its time, for each machine."""

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from bench import whole_table
from bench.claims import Claims
from bench.core_distance import distance_ns
from bench.record import Record, append, read
from bench.whole_cost import Estimates
from bench.whole_networks import Session
from bench.whole_picture import DRAWN, bars, draw
from bench.whole_rows import (
    FIRST,
    LIMITS,
    NETWORKS,
    PEAK,
    SPEEDUP,
    Case,
    Way,
    cases,
    name,
    parts_of,
    sample_shape,
    ways_of,
)

HERE = {
    "kind": "machine", "date": "2026-01-01T00:00:00+00:00", "processor": "a CPU", "vectors": "avx2",
    "cores": 2, "library": "one",
}  # fmt: skip
ELSEWHERE = {**HERE, "vectors": "avx512"}
SMALL = [Case("unet3d", 1, 2, True), Case("squeezenet1_1", 1, 2, True), Case("resnet18", 1, 2, True)]


class Fake:
    """A clock, and a measuring function that takes a given share of each estimate."""

    def __init__(self, share: float = 1.0) -> None:
        self.now, self.share = 0.0, share
        self.asked: list[tuple[Case, tuple[Way, ...]]] = []

    def clock(self) -> float:
        return self.now

    def measure(self, case: Case, ways: Sequence[Way], rounds_s: float, most_s: float) -> list[Record]:
        self.asked.append((case, tuple(ways)))
        took = self.share * Estimates([]).seconds(case, len(ways), rounds_s)
        self.now += min(took, most_s)
        if took > most_s:
            raise subprocess.TimeoutExpired("step", most_s)
        return [
            Record("whole", name(case, way), SPEEDUP, 1.1, "ratio", {"stock_ms": 1.0}) for way in ways
        ]  # fmt: skip


def measured(path: Path, fake: Fake, wanted: list[Case], minutes: float = 1e6, run: int = 1) -> str:
    """Let a session measure with a fake, and return what it prints."""
    session = Session(path, dict(HERE), run, 5.0, fake.measure, fake.clock)
    out = io.StringIO()
    session.measure(wanted, minutes, Console(file=out, width=300))
    return out.getvalue()


def test_a_session_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    path, first, second = tmp_path / "rows.jsonl", Fake(), Fake()
    measured(path, first, SMALL[:2])
    measured(path, second, SMALL)
    assert [case for case, _ in first.asked] == SMALL[:2]
    assert [case for case, _ in second.asked] == SMALL[2:]
    assert len(read(path)) == 3 * len(LIMITS)


def test_only_the_limits_that_are_missing_are_measured(tmp_path: Path) -> None:
    path, fake = tmp_path / "rows.jsonl", Fake()
    former = Record("whole", name(SMALL[0], Way("8MiB")), SPEEDUP, 1.0, "ratio", {"run": 1, "stock_ms": 1.0})
    append(path, HERE, former)
    measured(path, fake, SMALL[:1])
    assert fake.asked == [(SMALL[0], (Way("64MiB"), Way("512MiB")))]


@pytest.mark.parametrize(("machine", "run"), [(ELSEWHERE, 1), (HERE, 2)])
def test_other_machines_and_other_runs_do_not_count(
    tmp_path: Path, machine: dict[str, object], run: int
) -> None:
    path, fake = tmp_path / "rows.jsonl", Fake()
    rows = [
        Record("whole", name(SMALL[0], way), SPEEDUP, 2.0, "ratio", {"run": 1, "stock_ms": 1.0})
        for way in ways_of(SMALL[0])
    ]
    append(path, machine, *rows)
    measured(path, fake, SMALL[:1], run=run)
    assert fake.asked == [(SMALL[0], ways_of(SMALL[0]))]
    assert [record.value for _, record in read(path)] == [2.0] * 3 + [1.1] * 3, "the others stay"


def test_a_case_that_does_not_fit_into_the_time_is_left_out(tmp_path: Path) -> None:
    large, fake = Case("maxvit_t", 16, 1, False), Fake()
    estimates = Estimates([])
    minutes = (estimates.seconds(SMALL[0], 3, 5.0) + 60) / 60
    assert estimates.seconds(large, 3, 5.0) > 60 * minutes
    said = measured(tmp_path / "rows.jsonl", fake, [large, SMALL[0], large], minutes)
    assert [case for case, _ in fake.asked] == [SMALL[0]]
    assert "none of them fits" in said
    assert fake.now <= 60 * minutes


def test_a_case_that_takes_longer_than_estimated_ends_with_the_time_and_leaves_no_record(
    tmp_path: Path,
) -> None:
    fake = Fake(share=3.0)
    minutes = Estimates([]).seconds(SMALL[0], 3, 5.0) / 60 * 1.5
    said = measured(tmp_path / "rows.jsonl", fake, SMALL, minutes)
    assert fake.now == pytest.approx(60 * minutes)
    assert "took longer than the estimated" in said
    assert not read(tmp_path / "rows.jsonl")


def test_a_case_that_fails_has_the_reason_and_does_not_end_the_session(tmp_path: Path) -> None:
    def fail(case: Case, ways: Sequence[Way], rounds_s: float, most_s: float) -> list[Record]:
        raise subprocess.CalledProcessError(1, "step", stderr=b"Traceback\nMemoryError: no more\n")

    path = tmp_path / "rows.jsonl"
    Session(path, dict(HERE), 1, 5.0, fail).measure(SMALL, 1e6, Console(file=io.StringIO()))
    records = [record for _, record in read(path)]
    assert {record.details["reason"] for record in records} == {"MemoryError: no more"}
    assert {record.metric for record in records} == {SPEEDUP, FIRST, PEAK}
    assert len(records) == len(SMALL) * len(LIMITS) * 3
    assert "failed" in whole_table.text(records)


@pytest.mark.parametrize("dies", [False, True])
def test_a_case_that_another_program_measures_is_left_to_it(tmp_path: Path, dies: bool) -> None:
    path, fake = tmp_path / "rows.jsonl", Fake()
    program = (
        "import sys; from pathlib import Path; from bench.claims import Claims\n"
        "with Claims(Path(sys.argv[1])).claim(sys.argv[2]) as claimed: print(claimed, flush=True); input()"
    )
    command = [sys.executable, "-c", program, str(path), str(SMALL[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        if dies:
            other.kill()
            other.wait()
        measured(path, fake, SMALL)
        other.kill()
    assert [case for case, _ in fake.asked] == (SMALL if dies else [SMALL[0], SMALL[2]])


def test_a_claim_ends_with_its_block(tmp_path: Path) -> None:
    claims, one = Claims(tmp_path / "rows.jsonl"), SMALL[0]
    for _ in range(2):
        with claims.claim(one) as claimed:
            assert claimed


def test_records_have_the_number_of_the_run_and_the_details_of_the_session(tmp_path: Path) -> None:
    path, fake = tmp_path / "rows.jsonl", Fake()
    session = Session(path, dict(HERE), 2, 5.0, fake.measure, fake.clock, {"core": 1})
    session.measure(SMALL[:1], 1e6, Console(file=io.StringIO()))
    assert all({"run": 2, "core": 1}.items() <= record.details.items() for _, record in read(path))


def test_the_distance_of_two_cores_is_a_time() -> None:
    distance = distance_ns()
    if len(os.sched_getaffinity(0)) < 2:
        assert distance is None
    else:
        assert distance is not None
        assert 1 < distance < 1e6


def test_estimates_follow_what_the_machine_has_measured() -> None:
    one, other, unrelated = (
        Case("vgg11", 16, 2, False),
        Case("vgg11", 64, 2, False),
        Case("unet3d", 16, 2, False),
    )
    usual = Estimates([])
    details = {"stock_ms": 1e3 * 3 * usual.stock_s(one)}
    slower = Estimates([Record("whole", name(one, Way("64MiB")), SPEEDUP, 1.0, "ratio", details)])
    for case in (one, other, unrelated):
        assert slower.stock_s(case) == pytest.approx(3 * usual.stock_s(case))
        assert slower.seconds(case, 3, 5.0) > usual.seconds(case, 3, 5.0)


def test_the_table_has_a_line_for_a_case_and_a_column_for_a_limit() -> None:
    case = "resnet18, training, N=16, 2 threads"
    records = [
        Record("whole", f"{case}, 64MiB", SPEEDUP, 1.2, "ratio", {"run": 1}),
        Record("whole", f"{case}, 64MiB", SPEEDUP, 1.4, "ratio", {"run": 2}),
        Record("whole", f"{case}, 8MiB", SPEEDUP, 0.96, "ratio", {"run": 1, "interval": [0.95, 0.98]}),
        Record("whole", f"{case}, 8MiB", SPEEDUP, 0.96, "ratio", {"run": 2, "verdict": "stock"}),
        Record("whole", f"{case}, 64MiB", FIRST, 4.0, "stock steps", {"run": 1}),
        Record("whole", f"{case}, 8MiB", FIRST, 5.0, "stock steps", {"run": 1}),
        Record("whole", f"{case}, 64MiB", PEAK, 1.05, "ratio", {"run": 1}),
        Record(
            "whole", "vgg11, inference, N=1, 1 thread, 512MiB", SPEEDUP, None, "ratio", {"reason": "killed"}
        ),
    ]
    text = whole_table.text(records)
    assert "**Training, N=16, 2 threads**" in text
    assert "| network | kind | 8MiB | 64MiB | 512MiB | first step | peak memory |" in text
    assert "| resnet18 | residual | **0.960** | 1.30 |  | 5.00 | 1.05 |" in text
    assert "| vgg11 | plain |  |  | failed |  |  |" in text
    assert "| rows measured | 2 of 513, 1 failed |" in text
    assert f"| geometric mean of {SPEEDUP}, training | 1.12, 0.96 to 1.30, of 2 |" in text
    assert f"| geometric mean of {SPEEDUP}, inference | not measured |" in text
    assert f"| rows below 0.97 | 1; the lowest is {case}, 8MiB |" in text
    assert "| of these with all of their intervals below | 0 |" in text
    assert "PyTorch's own convolutions | 0.96, 0.96 to 0.96, of 1 |" in text
    assert f"| median 7.7 %, largest 15.4 % ({case}, 64MiB), of 2 |" in text


def test_the_figures_of_all_machines_count_a_row_once_and_each_machine_s_value() -> None:
    case = "resnet18, training, N=16, 2 threads"
    one = [
        Record("whole", f"{case}, 64MiB", SPEEDUP, 1.0, "ratio", {"run": 1}),
        Record("whole", f"{case}, 64MiB", SPEEDUP, 1.2, "ratio", {"run": 2}),
        Record("whole", f"{case}, 8MiB", SPEEDUP, 0.95, "ratio", {"run": 1}),
    ]
    other = [
        Record("whole", f"{case}, 8MiB", SPEEDUP, 0.96, "ratio", {"run": 1}),
        Record("whole", f"{case}, 512MiB", SPEEDUP, 0.9, "ratio", {"run": 1}),
    ]
    text = whole_table.together([one, other])
    assert "| rows measured on at least one machine | 3 of 513 |" in text
    assert f"| geometric mean of {SPEEDUP}, training | 0.98, 0.90 to 1.10, of 3 |" in text
    assert "| values below 0.97 | 3 of 4 |" in text
    assert "below 0.97 on each | 1, 1 |" in text


def test_the_picture_has_all_runs_of_all_machines_within_the_first_limit(tmp_path: Path) -> None:
    training, inference = DRAWN
    records = [
        Record("whole", f"resnet18, {training}, 64MiB", SPEEDUP, 1.2, "ratio", {"run": 1}),
        Record("whole", f"resnet18, {training}, 64MiB", SPEEDUP, 1.4, "ratio", {"run": 2}),
        Record("whole", f"resnet18, {training}, 8MiB", SPEEDUP, 9.0, "ratio", {"run": 1}),
        Record("whole", f"resnet18, {training}, 64MiB, background", SPEEDUP, 9.0, "ratio", {"run": 1}),
        Record("whole", f"resnet18, {inference}, 64MiB", FIRST, 9.0, "stock steps", {"run": 1}),
        Record("whole", f"vgg11, {inference}, 64MiB", SPEEDUP, None, "ratio", {"reason": "killed"}),
        Record("whole", f"unet3d, {inference}, 64MiB", SPEEDUP, 0.9, "ratio", {"run": 1}),
    ]
    path = tmp_path / "whole_networks.jsonl"
    append(
        path, ELSEWHERE, Record("whole", f"resnet18, {training}, 64MiB", SPEEDUP, 7.0, "ratio", {"run": 1})
    )
    append(path, HERE, *records)
    found = bars(path)
    assert found == {training: {"resnet18": [7.0, 1.2, 1.4]}, inference: {"unet3d": [0.9]}}
    draw(tmp_path / "picture.svg", path)
    drawn = (tmp_path / "picture.svg").read_text()
    assert all(text in drawn for text in ("resnet18", "3.20", "unet3d", "0.90", training, inference))
    assert "vgg11" not in drawn


def test_the_most_important_cases_come_first_and_no_row_comes_twice() -> None:
    names = [name(case, way) for case in cases() for way in ways_of(case)]
    assert len(names) == len(set(names))
    assert all(f"{case}".endswith("training, N=16, 2 threads") for case in list(cases())[: len(NETWORKS)])
    assert sum("background" in one for one in names) == 3
    assert len({kind for kind, _ in NETWORKS.values()}) >= 6


def test_the_largest_mini_batch_has_thirteen_networks_and_smaller_images() -> None:
    networks = [case.network for case in cases() if case.setting == "training, N=64, 1 thread"]
    assert len(networks) == 13
    assert sample_shape("resnet18", 16) == (3, 224, 224)
    assert sample_shape("resnet18", 64) == (3, 112, 112)
    assert sample_shape("inception_v3", 64) == (3, 150, 150)
    assert sample_shape("unet3d", 64) == sample_shape("unet3d", 16), "a 3-D image stays"
    one, other = Case("resnet18", 16, 2, False), Case("resnet18", 64, 2, False)
    assert Estimates([]).stock_s(other) < 1.1 * Estimates([]).stock_s(one)


def test_the_name_of_a_row_has_all_its_parts() -> None:
    for case in cases():
        for way in ways_of(case):
            network, setting, text = parts_of(name(case, way))
            assert (network, setting, Way.parse(text)) == (case.network, case.setting, way)

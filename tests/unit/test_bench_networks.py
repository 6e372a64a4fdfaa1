"""The cases of the program `networks`, its tables, and its picture."""

from dataclasses import replace
from pathlib import Path

from bench.lib.plots import DRAWN, Bar, bars, draw_networks
from bench.lib.record import Record, append
from bench.suites.networks.networks import (
    DEFAULT,
    LIMIT,
    LIMITS,
    NETWORKS,
    SPEEDUP,
    Case,
    cases,
    name,
    parts_of,
    sample_shape,
)
from bench.suites.networks.table import default_table, large_tables

HERE = {
    "kind": "machine", "date": "2026-01-01T00:00:00+00:00", "processor": "a CPU", "vectors": "avx2",
    "cores": 2, "library": "one",
}  # fmt: skip
ELSEWHERE = {**HERE, "vectors": "avx512"}


def test_the_default_has_eight_networks_in_training_and_inference_on_two_threads() -> None:
    default = list(cases(everything=False))
    assert default == [Case(network, 16, 2, mode) for mode in (False, True) for network in DEFAULT]
    assert len(DEFAULT) == 8
    assert set(default) < set(cases())


def row(case: str, speedup: float, *, first: float = 2.0, peak: float = 1.0, **more: object) -> Record:
    return Record("all_networks", case, SPEEDUP, speedup, "ratio", {"first": first, "peak": peak, **more})


def test_the_default_table_has_a_line_for_each_network() -> None:
    case = f"resnet18, training, N=16, 2 threads, {LIMIT}"
    records = [
        row(case, 1.2, first=4.0, peak=1.05),
        row(case.replace("training", "inference"), 0.96),
        row(case.replace(LIMIT, "8MiB"), 9.0),
    ]
    lines = default_table(records)
    assert "| resnet18 | residual | 1.20 | **0.960** | 4.00 | 1.05 |" in lines
    assert "| vgg11 | plain |  |  |  |  |" in lines


def test_the_table_has_a_line_for_a_case_and_a_column_for_a_limit() -> None:
    case = "resnet18, training, N=16, 2 threads"
    failed = "vgg11, inference, N=1, 1 thread, 512MiB"
    records = [
        row(f"{case}, 64MiB", 1.3, first=4.0, peak=1.05, runs=[1.2, 1.4]),
        row(f"{case}, 8MiB", 0.96, first=5.0, runs=[0.95, 0.97]),
        Record("all_networks", failed, SPEEDUP, None, "ratio", {"reason": "killed"}),
    ]
    text = "\n".join(large_tables(records))
    assert "**Training, N=16, 2 threads**" in text
    assert "| network | kind | 8MiB | 64MiB | 512MiB | first step | peak memory |" in text
    assert "| resnet18 | residual | **0.960** | 1.30 |  | 5.00 | 1.05 |" in text
    assert "| vgg11 | plain |  |  | failed |  |  |" in text
    assert "| rows measured | 2 of 510, 1 failed |" in text
    assert f"| geometric mean of {SPEEDUP}, training | 1.12, 0.96 to 1.30, of 2 |" in text
    assert f"| geometric mean of {SPEEDUP}, inference | not measured |" in text
    assert "| runs below 0.97 | 1 of 4, down to 0.95 |" in text


def test_a_row_of_several_machines_counts_once() -> None:
    case = "resnet18, training, N=16, 2 threads"
    records = [row(f"{case}, 64MiB", 1.1), row(f"{case}, 8MiB", 0.9), row(f"{case}, 8MiB", 1.6, first=8.0)]
    text = "\n".join(large_tables(records))
    assert "| rows measured | 2 of 510 |" in text
    assert f"| geometric mean of {SPEEDUP}, training | 1.15, 1.10 to 1.20, of 2 |" in text
    assert "| runs below 0.97 | 1 of 3, down to 0.90 |" in text
    assert "| resnet18 | residual | 1.20 | 1.10 |  | 4.00 | 1.00 |" in text


def test_the_picture_has_the_newest_figures_of_each_machine_within_the_first_limit(tmp_path: Path) -> None:
    training, inference = DRAWN
    newer = {**HERE, "date": "2026-01-02T00:00:00+00:00"}
    again = row(f"resnet18, {training}, 64MiB", 1.5, interval=[1.45, 1.6])
    records = [
        row(f"resnet18, {training}, 64MiB", 1.3, runs=[1.2, 1.4]),
        row(f"resnet18, {training}, 8MiB", 9.0),
        Record("all_networks", f"vgg11, {inference}, 64MiB", SPEEDUP, None, "ratio", {"reason": "killed"}),
        row(f"unet3d, {inference}, 64MiB", 0.9, runs=[0.8, 0.9]),
    ]
    path = tmp_path / "networks.jsonl"
    append(path, newer, replace(again, bench="networks"))
    append(path, ELSEWHERE, row(f"resnet18, {training}, 64MiB", 7.0))
    append(path, HERE, *records)
    assert bars(tmp_path) == {
        training: {
            "a CPU, avx2, 2 cores": {"resnet18": Bar(1.5, 1.45, 1.6)},
            "a CPU, avx512, 2 cores": {"resnet18": Bar(7.0, 7.0, 7.0)},
        },
        inference: {"a CPU, avx2, 2 cores": {"unet3d": Bar(0.9, 0.8, 0.9)}},
    }
    draw_networks(tmp_path / "picture.svg", tmp_path)
    drawn = (tmp_path / "picture.svg").read_text()
    assert all(text in drawn for text in ("resnet18", "1.50", "7.00", "unet3d", "0.90", training, inference))
    assert "vgg11" not in drawn
    assert "1.30" not in drawn


def test_the_most_important_cases_come_first_and_no_row_comes_twice() -> None:
    names = [name(case, limit) for case in cases() for limit in LIMITS]
    assert len(names) == len(set(names))
    assert all(f"{case}".endswith("training, N=16, 2 threads") for case in list(cases())[: len(NETWORKS)])
    assert len({kind for kind, _ in NETWORKS.values()}) >= 6


def test_the_largest_mini_batch_has_thirteen_networks_and_smaller_images() -> None:
    networks = [case.network for case in cases() if case.setting == "training, N=64, 1 thread"]
    assert len(networks) == 13
    assert sample_shape("resnet18", 16) == (3, 224, 224)
    assert sample_shape("resnet18", 64) == (3, 112, 112)
    assert sample_shape("inception_v3", 64) == (3, 150, 150)
    assert sample_shape("unet3d", 64) == sample_shape("unet3d", 16), "a 3-D image stays"


def test_the_name_of_a_row_has_all_its_parts() -> None:
    for case in cases():
        for limit in LIMITS:
            assert parts_of(name(case, limit)) == (case.network, case.setting, limit)

"""The cases of the program `networks`, its tables, and its picture."""

from pathlib import Path

from bench.lib.plots import DRAWN, bars, draw_networks
from bench.lib.record import Record, append
from bench.suites.networks import table
from bench.suites.networks.rows import (
    DEFAULT,
    FIRST,
    LIMIT,
    LIMITS,
    NETWORKS,
    PEAK,
    SPEEDUP,
    Case,
    cases,
    name,
    parts_of,
    sample_shape,
)

HERE = {
    "kind": "machine", "date": "2026-01-01T00:00:00+00:00", "processor": "a CPU", "vectors": "avx2",
    "cores": 2, "library": "one",
}  # fmt: skip
ELSEWHERE = {**HERE, "vectors": "avx512"}


def test_the_default_has_eight_networks_in_training_and_inference_on_two_threads() -> None:
    found = list(cases(everything=False))
    assert found == [Case(network, 16, 2, mode) for mode in (False, True) for network in DEFAULT]
    assert len(DEFAULT) == 8
    assert set(found) < set(cases())


def test_the_default_table_has_a_line_for_each_network() -> None:
    case = f"resnet18, training, N=16, 2 threads, {LIMIT}"
    records = [
        Record("networks", case, SPEEDUP, 1.2, "ratio"),
        Record("networks", case, FIRST, 4.0, "stock steps"),
        Record("networks", case, PEAK, 1.05, "ratio"),
        Record("networks", case.replace("training", "inference"), SPEEDUP, 0.96, "ratio"),
        Record("networks", case.replace(LIMIT, "8MiB"), SPEEDUP, 9.0, "ratio"),
    ]
    lines = table.default_table(records)
    assert "| resnet18 | residual | 1.20 | **0.960** | 4.00 | 1.05 |" in lines
    assert "| vgg11 | plain |  |  |  |  |" in lines


def test_the_table_has_a_line_for_a_case_and_a_column_for_a_limit() -> None:
    case = "resnet18, training, N=16, 2 threads"
    records = [
        Record("networks", f"{case}, 64MiB", SPEEDUP, 1.2, "ratio", {"run": 1}),
        Record("networks", f"{case}, 64MiB", SPEEDUP, 1.4, "ratio", {"run": 2}),
        Record("networks", f"{case}, 8MiB", SPEEDUP, 0.96, "ratio", {"run": 1, "interval": [0.95, 0.98]}),
        Record("networks", f"{case}, 8MiB", SPEEDUP, 0.96, "ratio", {"run": 2, "verdict": "stock"}),
        Record("networks", f"{case}, 64MiB", FIRST, 4.0, "stock steps", {"run": 1}),
        Record("networks", f"{case}, 8MiB", FIRST, 5.0, "stock steps", {"run": 1}),
        Record("networks", f"{case}, 64MiB", PEAK, 1.05, "ratio", {"run": 1}),
        Record(
            "networks",
            "vgg11, inference, N=1, 1 thread, 512MiB",
            SPEEDUP,
            None,
            "ratio",
            {"reason": "killed"},
        ),
    ]
    text = table.text(records)
    assert "**Training, N=16, 2 threads**" in text
    assert "| network | kind | 8MiB | 64MiB | 512MiB | first step | peak memory |" in text
    assert "| resnet18 | residual | **0.960** | 1.30 |  | 5.00 | 1.05 |" in text
    assert "| vgg11 | plain |  |  | failed |  |  |" in text
    assert "| rows measured | 2 of 510, 1 failed |" in text
    assert f"| geometric mean of {SPEEDUP}, training | 1.12, 0.96 to 1.30, of 2 |" in text
    assert f"| geometric mean of {SPEEDUP}, inference | not measured |" in text
    assert f"| rows below 0.97 | 1; the lowest is {case}, 8MiB |" in text
    assert "| of these with all of their intervals below | 0 |" in text
    assert "PyTorch's own convolutions | 0.96, 0.96 to 0.96, of 1 |" in text
    assert f"| median 7.7 %, largest 15.4 % ({case}, 64MiB), of 2 |" in text


def test_the_figures_of_all_machines_count_a_row_once_and_each_machine_s_value() -> None:
    case = "resnet18, training, N=16, 2 threads"
    one = [
        Record("networks", f"{case}, 64MiB", SPEEDUP, 1.0, "ratio", {"run": 1}),
        Record("networks", f"{case}, 64MiB", SPEEDUP, 1.2, "ratio", {"run": 2}),
        Record("networks", f"{case}, 8MiB", SPEEDUP, 0.95, "ratio", {"run": 1}),
    ]
    other = [
        Record("networks", f"{case}, 8MiB", SPEEDUP, 0.96, "ratio", {"run": 1}),
        Record("networks", f"{case}, 512MiB", SPEEDUP, 0.9, "ratio", {"run": 1}),
    ]
    text = table.together([one, other])
    assert "| rows measured on at least one machine | 3 of 510 |" in text
    assert f"| geometric mean of {SPEEDUP}, training | 0.98, 0.90 to 1.10, of 3 |" in text
    assert "| values below 0.97 | 3 of 4 |" in text
    assert "below 0.97 on each | 1, 1 |" in text


def test_the_picture_has_all_runs_of_all_machines_within_the_first_limit(tmp_path: Path) -> None:
    training, inference = DRAWN
    records = [
        Record("networks", f"resnet18, {training}, 64MiB", SPEEDUP, 1.2, "ratio", {"run": 1}),
        Record("networks", f"resnet18, {training}, 64MiB", SPEEDUP, 1.4, "ratio", {"run": 2}),
        Record("networks", f"resnet18, {training}, 8MiB", SPEEDUP, 9.0, "ratio", {"run": 1}),
        Record("networks", f"resnet18, {inference}, 64MiB", FIRST, 9.0, "stock steps", {"run": 1}),
        Record("networks", f"vgg11, {inference}, 64MiB", SPEEDUP, None, "ratio", {"reason": "killed"}),
        Record("networks", f"unet3d, {inference}, 64MiB", SPEEDUP, 0.9, "ratio", {"run": 1}),
    ]
    path = tmp_path / "networks.jsonl"
    append(path, ELSEWHERE, Record("networks", f"resnet18, {training}, 64MiB", SPEEDUP, 7.0, "ratio"))
    append(path, HERE, *records)
    found = bars(tmp_path)
    assert found == {training: {"resnet18": [7.0, 1.2, 1.4]}, inference: {"unet3d": [0.9]}}
    draw_networks(tmp_path / "picture.svg", tmp_path)
    drawn = (tmp_path / "picture.svg").read_text()
    assert all(text in drawn for text in ("resnet18", "3.20", "unet3d", "0.90", training, inference))
    assert "vgg11" not in drawn


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

"""The pages of bench/results are those of the committed records."""

import re
from pathlib import Path

import pytest

from bench.lib.record import RESULTS, Record, describe_machine, put, read, read_own
from bench.programs import PROGRAMS
from bench.suites.questions import QUESTIONS
from bench.tables import SUITES, page

ROOT = Path(__file__).parents[2]
MACHINE = {
    "kind": "machine", "date": "2026-01-01T00:00:00+00:00", "processor": "a CPU", "vectors": "avx2",
    "cores": 2, "library": "one",
}  # fmt: skip


@pytest.mark.parametrize("suite", SUITES)
def test_the_pages_are_up_to_date(suite: str) -> None:
    assert (RESULTS / f"{suite}.md").read_text("utf-8") == page(suite, RESULTS), "run python -m bench tables"


def test_the_page_about_memory_shows_the_peaks_of_plans() -> None:
    text = (ROOT / "docs" / "memory.md").read_text("utf-8")
    memory = (RESULTS / "memory.md").read_text("utf-8")
    plans = {
        "ConvNeXt-T": "convnext",
        "VGG-16 with norms": "vgg16 with norms",
        "ResNet-50": "resnet50",
        "3-D U-Net": "unet3d",
    }
    for name, network in plans.items():
        (shown,) = re.findall(rf"^\| {name} \| ([\d.]+) \|$", text, re.MULTILINE)
        (peak,) = re.findall(rf"^\| {network} \| plain \|.* ([\d.]+) \|$", memory, re.MULTILINE)
        assert shown == f"{float(peak):.2f}"


@pytest.mark.parametrize("name", ["training", "inference"])
def test_the_readme_shows_the_speedups_of_all_networks(name: str) -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    number = r"([\d.]+)"
    (shown,) = re.findall(rf"{number}× in\s{name}\s\({number}× to {number}×, (\d+) rows\)", text)
    figures = rf"^\| .*{name}.* \| {number}, {number} to {number}, of (\d+) \|$"
    measured = re.findall(figures, (RESULTS / "networks.md").read_text("utf-8"), re.MULTILINE)
    assert [*map(float, shown)] in [[*map(float, row)] for row in measured]


def test_the_readme_shows_the_figures_of_a_gpu() -> None:
    text = " ".join((ROOT / "README.md").read_text("utf-8").split())
    measured = (RESULTS / "gpu.md").read_text("utf-8")
    for limit in (8, 64, 512):
        shown = []
        for column in ("fp16 NCHW", "TF32 NCHW"):
            row = rf"^\| {column} \| alexnet and resnet50 \| {limit} \| ([\d.]+) \| ([\d.]+) \|"
            ((mean, best),) = re.findall(row, measured, re.MULTILINE)
            shown.append(f"{mean}×" if best == "1.00" else f"{mean}×, at most {float(best):.1f}×")
        assert f"| {limit} MiB | {shown[0]} | {shown[1]} |" in text
    case = r"^\| N=64, {} \| time of a call \| ([\d.]+) \|"
    names = ("512 MiB of workspace, stock", "512 MiB of workspace, mucudnn run.*", "any workspace, stock")
    stock, divided, unlimited = (
        f"{float(re.findall(case.format(name), measured, re.MULTILINE)[0]):.1f} ms" for name in names
    )
    assert f"takes {stock} in PyTorch and {divided} under `mucudnn run --workspace 512MiB`" in text
    assert f"as much memory as it wants PyTorch takes {unlimited}" in text


@pytest.mark.parametrize(
    ("case", "metric", "value"),
    [
        ("V100-SXM2-16GB, cuDNN 7.6.4; f16 nchw; 256; 64 MiB a layer", "undivided", 48.25),
        ("V100-SXM2-16GB, cuDNN 7.6.4; f16 nchw; 256; 64 MiB a layer", "divided", 37.04),
        ("V100-SXM2-16GB, cuDNN 7.6.4; f32 nchw; 256; 256 MiB a layer", "divided", 49.24),
        ("V100-SXM2-16GB, cuDNN 7.6.4; f32 nchw; 256", "least limit, undivided", 340),
        ("V100-SXM2-16GB, cuDNN 7.6.4; f32 nchw; 256", "least limit, divided", 180),
        ("T4, cuDNN 7.6.3; f32 nchw; 256", "least limit, divided", 221),
    ],
)
def test_sums_of_recorded_times_are_those_of_another_program(case: str, metric: str, value: float) -> None:
    (record,) = (
        r for _, r in read(RESULTS / "recorded.jsonl") if (r.case, r.metric) == (f"Tesla {case}", metric)
    )
    assert record.value == pytest.approx(value, rel=0.01)


def put_all(path: Path, machine: dict[str, object], *records: Record) -> None:
    for record in records:
        put(path, machine, record)


@pytest.mark.parametrize("program", QUESTIONS)
def test_each_program_has_committed_figures(program: str) -> None:
    records = [record for _, record in read(PROGRAMS[program].records) if PROGRAMS[program].owns(record)]
    assert any(answer(records) for _, _, answer in QUESTIONS[program])


def test_every_committed_figure_belongs_to_a_bench_with_a_table() -> None:
    for suite in SUITES:
        records = [record for _, record in read(RESULTS / f"{suite}.jsonl")]
        own_tables = {
            "networks",
            "promises",
            "all_networks",
            "compilers",
            "large_samples",
            "recorded",
            "split",
            "models",
            "streaming",
            "modelled_streaming",
        }
        for bench in {record.bench for record in records} - own_tables:
            measured, without = ([r for r in records if (r.bench == bench) == own] for own in (True, False))
            (program,) = (p for p in PROGRAMS.values() if p.suite == suite and p.owns(measured[0]))
            answers = [answer for _, _, answer in QUESTIONS[program.name]]
            assert any(answer(records) != answer(without) for answer in answers), (suite, bench)


def test_a_machine_is_described_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert describe_machine()["commit"] == ""


def test_a_repeated_measurement_replaces_the_figure(tmp_path: Path) -> None:
    path = tmp_path / "core.jsonl"
    old, new = (Record("cache", case, "time", 1.0, "ms") for case in ("old", "new"))
    later = {**MACHINE, "date": "2026-02-02T00:00:00+00:00"}
    put_all(path, MACHINE, old, new)
    put(path, later, Record("cache", "new", "time", 2.0, "ms"))
    figures = [(machine["date"][:10], record.case, record.value) for machine, record in read(path)]
    assert figures == [("2026-01-01", "old", 1.0), ("2026-02-02", "new", 2.0)]


@pytest.mark.parametrize(
    "other",
    [{"processor": "another CPU"}, {"vectors": "avx512"}, {"cores": 64}, {"model": "family 25, model 1"}],
)
def test_a_run_keeps_the_records_of_other_machines(tmp_path: Path, other: dict[str, object]) -> None:
    path = tmp_path / "core.jsonl"
    elsewhere = {**MACHINE, **other}
    put(path, elsewhere, Record("division", "case", "time", 1.0, "ms"))
    for value in (2.0, 3.0):
        put(path, MACHINE, Record("division", "case", "time", value, "ms"))
    assert [record.value for _, record in read(path)] == [1.0, 3.0]
    assert [record.value for record in read_own(path, MACHINE)] == [3.0]
    assert [record.value for record in read_own(path, elsewhere)] == [1.0]

"""The pages of bench/results are those of the committed records."""

import re
from pathlib import Path

import pytest

from bench.lib.answers import NOT_MEASURED
from bench.lib.record import RESULTS, Record, append, describe_machine, put, read, read_own
from bench.programs import PROGRAMS
from bench.suites.gpu.summary import gpu_tables, tables
from bench.suites.networks.networks import SPEEDUP
from bench.suites.questions import QUESTIONS
from bench.tables import PEAKS, SUITES, page, steps_tables

ROOT = Path(__file__).parents[2]
MACHINE = {
    "kind": "machine", "date": "2026-01-01T00:00:00+00:00", "processor": "a CPU", "vectors": "avx2",
    "cores": 2, "library": "one",
}  # fmt: skip


@pytest.mark.parametrize("suite", SUITES)
def test_the_pages_are_up_to_date(suite: str) -> None:
    assert (RESULTS / f"{suite}.md").read_text("utf-8") == page(suite, RESULTS), "run python -m bench tables"


def test_the_readme_shows_the_speedups_of_networks_and_the_peaks_of_plans() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    networks, memory = ((RESULTS / f"{suite}.md").read_text("utf-8") for suite in ("networks", "memory"))
    names = {
        "3-D U-Net": "unet3d", "VGG-11": "vgg11", "ResNet-18": "resnet18", "GoogLeNet": "googlenet",
        "MobileNet v2": "mobilenet_v2", "3-D ResNet-18": "r3d_18",
    }  # fmt: skip
    for name, network in names.items():
        rows = re.findall(rf"^\| {name} \| ([\d.]+)× \| ([\d.]+)× \|$", text, re.MULTILINE)
        measured = re.findall(
            rf"^\| {network} \| [^|]+ \| ([\d.]+) \|(?: [\d.]+ \|){{3}}$", networks, re.MULTILINE
        )
        assert [sorted(row) for row in rows] == [sorted(measured)]
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


def test_the_readme_shows_the_same_speedups() -> None:
    table = "".join((RESULTS / f"{suite}.md").read_text("utf-8") for suite in ("core", "networks"))
    text = (ROOT / "README.md").read_text("utf-8")
    number = r"([\d.]+)"
    speedups = rf"{number}× \| {number}× \| {number}×"
    rows = re.findall(rf"^\| ([a-z ]+) \|(?: (\d+) \|)? {speedups} \|$", text, re.MULTILINE)
    names = [name for name, *_ in rows]
    assert names == ["training", "inference", "forward", "backward data", "backward filter"]
    for name, count, *shown in rows:
        figures = rf"{number}, {number} to {number}, of (\d+)"
        matches = re.findall(rf"^\| .*{name}.* \| {figures} \|$", table, re.MULTILINE)
        measured = [list(map(float, row)) for row in matches]
        if count:
            assert [*map(float, shown), float(count)] in measured
        else:
            assert list(map(float, shown)) in [row[:3] for row in measured]


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


def put_all(path: Path, machine: dict[str, object], *records: Record) -> None:
    for record in records:
        put(path, machine, record)


def test_the_table_has_the_last_peaks_of_each_step_under_a_memory_plan(tmp_path: Path) -> None:
    for value in (9.0, 0.5):
        records = [Record("memory steps", "vgg16, with norms, plain", metric, value, "x") for metric in PEAKS]
        append(tmp_path / "memory_steps.jsonl", MACHINE, *records)
    text = "\n".join(steps_tables(tmp_path))
    assert "\n`MEMORY_SUITE=all " in text
    assert "`, 2026-01-01, a CPU, avx2, 2 cores, one\n" in text
    assert "| vgg16, with norms | plain | 0.5 | 0.5 | 0.5 |" in text
    assert "9" not in text.partition("one\n")[2]


def test_without_a_gpu_each_table_says_not_measured(tmp_path: Path) -> None:
    dry = {**MACHINE, "engine": "host", "gpu": {"name": "a GPU that was not asked"}}
    append(tmp_path / "a-CPU" / "gpu.jsonl", dry, Record("equality", "a case", "error", 1, ""))
    assert gpu_tables(tmp_path) == tables({})
    assert NOT_MEASURED in gpu_tables(tmp_path)


def test_each_gpu_has_a_table_of_its_own_whatever_its_driver_says(tmp_path: Path) -> None:
    first, later = ({**MACHINE, "engine": "cudnn", "gpu": {}, "date": f"2026-01-0{day}"} for day in (1, 3))
    errors = [Record("equality", f"case {n}", "error", 1 + n / 10, "ratio") for n in (1, 2)]
    append(tmp_path / "a-GPU" / "gpu.jsonl", first, errors[0], later, errors[1])
    append(tmp_path / "b-GPU" / "gpu.jsonl", first, errors[0])
    text = "\n".join(gpu_tables(tmp_path))
    assert text.startswith("[a-GPU](a-GPU/summary.md), 2026-01-01 to 2026-01-03\n\n**")
    assert "[b-GPU](b-GPU/summary.md), 2026-01-01\n\n**" in text
    assert "| at most 2 | at most 1.20 in 2 |" in text


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


def test_each_machine_has_a_table_of_its_own(tmp_path: Path) -> None:
    metric = "speedup at 64 MiB, re-measured"
    for vectors, ratio in (("avx512", 2.0), ("avx2", 8.0)):
        machine = {**MACHINE, "vectors": vectors, "device": f"a CPU, {vectors}, a BLAS"}
        put(tmp_path / "core.jsonl", machine, Record("division", "x forward", metric, ratio, "ratio"))
    _, first, second = re.split("`python -m bench run division`, 2026-01-01, a CPU, ", page("core", tmp_path))
    for text, vectors, ratio in ((first, "avx512", 2), (second, "avx2", 8)):
        assert text.startswith(f"{vectors}, 2 cores, a BLAS, one\n")
        assert f"| above the paper's 1.63 | {ratio}, {ratio}, of 1 |" in text


def test_a_machine_may_lack_figures_that_another_has(tmp_path: Path) -> None:
    figures = {"avx512": ("decoder: seconds", "decoder: bytes"), "avx2": ("decoder: seconds",)}
    for vectors, metrics in figures.items():
        records = [Record("spatial", "a case", metric, 1.0, "ratio") for metric in metrics]
        put_all(tmp_path / "devices.jsonl", {**MACHINE, "vectors": vectors}, *records)
    _, first, second = re.split("`python -m bench run spatial`, ", page("devices", tmp_path))
    memory = "| its memory on the largest rank relative to one process |"
    assert f"{memory} at most 0.35 | a case: 1 |" in first
    assert "| the same: silently wrong | 0 | not measured |" in first, "no machine measured it"
    assert memory not in second
    assert "on 4 ranks relative to one process, converted | at most 1.15 | a case: 1 |" in second


def test_the_default_networks_have_a_table_for_each_machine_and_all_networks_one(tmp_path: Path) -> None:
    row = "resnet18, training, N=16, 2 threads, 64MiB"
    details = {"first": 2.0, "peak": 1.0}
    for vectors, speedup in (("avx512", 1.25), ("avx2", 1.8)):
        for bench in ("networks", "all_networks"):
            record = Record(bench, row, SPEEDUP, speedup, "ratio", details)
            append(tmp_path / "networks.jsonl", {**MACHINE, "vectors": vectors}, record)
    default, _, large = page("networks", tmp_path).partition("## all_networks")
    _, first, second = default.split("`python -m bench run networks`, 2026-01-01, a CPU, ")
    assert first.startswith("avx512, 2 cores, one\n")
    assert "| resnet18 | residual | 1.25 |  | 2.00 | 1.00 |" in first
    assert "| resnet18 | residual | 1.80 |  | 2.00 | 1.00 |" in second
    assert large.count("`python -m bench run all_networks`, 2026-01-01, a CPU, ") == 2
    assert "| resnet18 | residual |  | 1.50 |  | 2.00 | 1.00 |" in large
